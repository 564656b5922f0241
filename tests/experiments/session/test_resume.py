"""Runs that are killed at any instant continue bit for bit, by their own settings; others are refused by name. A crash is an exception that nothing catches."""

import importlib
import logging
import os
import re
import resource
import shutil
import sys
import traceback

import numpy as np
import pytest

from experiments.cli.command import guard
from experiments.session.resume import run_settings
from fedmf.errors import RunDirectoryError, SettingError
from fedmf.randomness import SecretKey
from plans import forget_round
from runs import (
    SMALL,
    Crash,
    assert_equal,
    at_night,
    command,
    composed,
    contents,
    crash_at,
    cut,
    metrics,
    model,
    refused,
    run,
    summary,
    typed,
)
from server import strategy

pytestmark = pytest.mark.long

SMALL = (*SMALL, "run.checkpoint_every=2")
RESUME = "run.resume=true"


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run that nothing interrupts."""
    return run(tmp_path_factory.mktemp("straight") / "r", *SMALL)


def interrupted(directory, *options, call="fsync", after=31):
    """Leave a run that crashed at the `after`-th call."""
    with pytest.MonkeyPatch.context() as patched:
        crash_at(patched, call, after)
        with pytest.raises(Crash):
            run(directory, *SMALL, *options)
    return directory


@pytest.mark.parametrize(("call", "after"), [("fsync", n) for n in (1, 9, 16, 24, 31, 39)] + [("replace", n) for n in (2, 8)]
                         + at_night(fsync=(2, 5, 8, 10, 11, 15, 17, 18, 20, 22, 32, 36), replace=(1, 3, 5, 6, 9, 11)))  # fmt: skip
def test_killed_at_any_write_the_run_continues_bit_for_bit(tmp_path, straight, call, after):
    directory = interrupted(tmp_path / "r", call=call, after=after)
    assert_equal(run(directory, *SMALL, RESUME), straight)


def test_a_clip_norm_that_adapts_survives_kills_and_is_that_of_a_pool(tmp_path):
    adaptive = (*SMALL, "clipping.adapt=0.5", "clipping.adapt_noise=1.5")
    straight = run(tmp_path / "straight", *adaptive, "engine.workers=2")
    for after in (1, 3, 5):
        directory = cut(tmp_path / f"{after}", *adaptive, after=after)
        assert_equal(run(directory, *adaptive, RESUME), straight)
    assert len({row["next_clip_norm"] for row in metrics(straight)}) == 3


def test_resume_starts_where_there_is_nothing_and_changes_nothing_of_a_finished_run(
    tmp_path, straight, capsys
):
    (tmp_path / "empty").mkdir()
    for name in ("absent", "empty"):
        directory = run(tmp_path / name, *SMALL, RESUME)
        assert f"nothing to resume in {directory}: a new run begins" in capsys.readouterr().err
        assert_equal(directory, straight)
        before = contents(directory)
        run(directory, *SMALL, RESUME)
        said = capsys.readouterr()
        assert "finished" in said.err
        assert '"accuracy"' in said.out  # output=json prints the document again
        assert contents(directory) == before


MINE = """
import numpy as np
from fedmf.mechanisms import strategy_family

FAMILY = strategy_family("mine", lambda workload: {matrix})
"""


def test_another_matrix_behind_the_same_import_path_is_refused(tmp_path, monkeypatch, capsys):
    """Rows of one matrix before the crash and of another after it would have a larger sensitivity than either."""
    monkeypatch.syspath_prepend(tmp_path)
    own = (*SMALL, "mechanism=custom", "mechanism.name=mine_of_the_resume_tests:FAMILY")

    def written(matrix):
        (tmp_path / "mine_of_the_resume_tests.py").write_text(MINE.format(matrix=matrix))
        importlib.invalidate_caches()
        sys.modules.pop("mine_of_the_resume_tests", None)

    written("np.eye(workload.rounds)")
    directory = cut(tmp_path / "r", *own, after=2)
    written("np.tri(workload.rounds, k=0)")
    assert "the matrix of mechanism.name is" in refused(capsys, directory, *own, RESUME)
    written("np.eye(workload.rounds)")
    run(directory, *own, RESUME)
    assert summary(directory)["rounds"] == 6


def between_checkpoints(directory):
    """Leave a run that crashed in its first epoch, with no checkpoint since the start."""
    interrupted(directory, "run.checkpoint_every=100", after=27)
    assert 0 < len(metrics(directory)) < 3
    return directory


def test_rounds_shown_after_the_last_checkpoint_are_not_run_again_without_their_record(tmp_path, capsys):
    directory = between_checkpoints(tmp_path / "r")
    shown = metrics(directory)
    for number in range(len(shown) + 1):
        forget_round(directory / "checkpoint", number + 1)
    resumed = (*SMALL, "run.checkpoint_every=100", RESUME, "run.accept_copy=true")
    assert guard(lambda: run(directory, *resumed)) == 2
    assert f"shows round {len(shown)}, but its record ends at round 0" in capsys.readouterr().err
    assert metrics(directory) == shown


def test_a_torn_line_of_metrics_is_written_again(tmp_path, straight):
    path = between_checkpoints(tmp_path / "r") / "metrics.jsonl"
    os.truncate(path, path.stat().st_size - 20)
    assert_equal(run(tmp_path / "r", *SMALL, "run.checkpoint_every=100", RESUME), straight)


def test_no_log_of_any_level_no_output_and_no_exception_shows_a_secret(tmp_path, monkeypatch, caplog, capsys):
    with caplog.at_level(logging.DEBUG):
        crash_at(monkeypatch, "fsync", 32)
        with pytest.raises(Crash) as crash:
            run(tmp_path / "r", *SMALL, "faults.error=0.2")
        monkeypatch.undo()
        run(tmp_path / "r", *SMALL, "faults.error=0.2", RESUME)
    shown = capsys.readouterr()
    text = caplog.text + shown.out + shown.err + "".join(traceback.format_exception(crash.value))
    assert "round" in text
    epochs = [SecretKey.reproducible(0), SecretKey.reproducible(0).ratchet()]
    masks = [key.mask_key(str(client), step) for key in epochs for client in range(1437) for step in range(3)]
    for secret in [*epochs, *masks]:
        assert secret.reveal().hex() not in text
        assert repr(secret.reveal())[2:-1] not in text


@pytest.mark.slow
def test_killed_between_attempts_the_run_continues_bit_for_bit(tmp_path, monkeypatch):
    options = (*SMALL, "faults.drop_out=0.3", "population.min_replies=5", "population.max_attempts=50")
    asked, crash_at_attempt = [], None
    real = strategy.exchange

    def exchange(grid, messages, **kwargs):
        asked.append(messages[0].metadata.group_id)
        if asked.count("4") == crash_at_attempt:
            raise Crash
        return real(grid, messages, **kwargs)

    monkeypatch.setattr(strategy, "exchange", exchange)
    whole = run(tmp_path / "whole", *options)
    assert asked.count("4") > 2  # round 4 took several attempts
    asked.clear()
    crash_at_attempt = 2
    with pytest.raises(Crash):
        run(tmp_path / "r", *options)
    crash_at_attempt = None
    assert_equal(run(tmp_path / "r", *options, RESUME), whole)


@pytest.mark.slow
def test_a_full_disk_stops_the_run_and_loses_nothing(tmp_path):
    """A limit on file sizes stands for the full disk: the database's next transaction does not fit."""

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (80_000, 80_000))

    settings = (*SMALL[:-1], "run.checkpoint_every=100")
    done = command(f"run.directory={tmp_path / 'r'}", *settings, cwd=tmp_path, preexec_fn=limit)
    assert done.returncode == 1
    assert RESUME in done.stderr
    assert_equal(run(tmp_path / "r", *settings, RESUME), run(tmp_path / "whole", *settings))


# No setting has its default, and a group of each kind has another choice than the default one.
OWN = ("dataset=synthetic", "dataset.clients=12", "dataset.features=5", "dataset.classes=3", "model=mlp",
       "model.hidden=7", "mechanism=blt", "optimizer=adam", "optimizer.learning_rate=0.02",
       "population.cohort_size=3", "population.rounds_per_epoch=3", "population.epochs=2", "run.reproducible=true",
       "metrics=[accuracy,f1]", "privacy.epsilon=null", "privacy.noise_multiplier=0.3", "run.checkpoint_every=2",
       "client.max_steps=3", "seed=5")  # fmt: skip


@pytest.fixture(scope="module")
def straight_alone(tmp_path_factory):
    return run(tmp_path_factory.mktemp("straight") / "r", *OWN)


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    return cut(tmp_path_factory.mktemp("broken") / "r", *OWN)


def asked(directory, *overrides):
    """Return the settings of a call that resumes the run in `directory`."""
    return run_settings([f"run.directory={directory}", RESUME, *overrides])


def test_directory_and_resume_alone_continue_bit_for_bit(tmp_path, straight_alone):
    directory = cut(tmp_path / "r", *OWN)
    recorded = (directory / "config.yaml").read_bytes()
    assert typed(f"run.directory={directory}", RESUME, cwd=tmp_path) == 0
    np.testing.assert_array_equal(model(directory), model(straight_alone))
    assert metrics(directory) == metrics(straight_alone)
    assert summary(directory)["noise_multiplier"] == 0.3
    assert (directory / "config.yaml").read_bytes() == recorded


def test_what_the_run_has_may_be_given_again(broken):
    has = composed(*OWN)
    for given in (("seed=5", "model=mlp", "optimizer=adam", "mechanism=blt"), OWN, ("privacy.epsilon=null",)):
        settings = asked(broken, *given)
        assert (settings.model, settings.optimizer) == (has.model, has.optimizer)
        assert settings.run.resume is True


@pytest.mark.parametrize(("given", "key", "has"), [
    ("seed=0", "seed is 0", "5"),  # which is the default
    ("model=cnn", "model is cnn", "mlp"),
    ("metrics=[accuracy]", r"metrics is \[accuracy\]", r"\[accuracy,f1\]"),
    ("privacy.epsilon=8 privacy.noise_multiplier=null", r"privacy\.epsilon is 8.0", "null"),
    ("privacy.max_epsilon=9", r"privacy\.max_epsilon is 9.0", "null"),
    ("+experiment=mnist_cnn", r"population\.cohort_size is 340", "3"),
])  # fmt: skip
def test_what_differs_is_refused_by_its_key_with_both_values(broken, given, key, has):
    before = contents(broken)
    with pytest.raises(RunDirectoryError, match=f"{key}, and the run has {has}"):
        asked(broken, *given.split())
    assert contents(broken) == before


def test_what_changes_speed_and_output_alone_may_be_given(broken):
    settings = asked(broken, "engine=ray", "output=json")
    assert (settings.engine.name, settings.output) == ("ray", "json")


def test_code_that_only_the_directory_names_is_not_imported_unless_trusted_or_typed(tmp_path, broken):
    config, own = (broken / "config.yaml").read_text(), "not_there_of_the_resuming_tests:own"
    for recorded, key in (
        ("loss: null", "client.loss"),
        ("- f1", "metrics[1]"),
        ("optimizer:\n  name: adam", "optimizer.name"),
    ):
        stolen = shutil.copytree(broken, tmp_path / key.strip("[1]"))
        named = recorded.rpartition(" ")[0] + f" {own}"
        assert recorded in config
        (stolen / "config.yaml").write_text(config.replace(recorded, named))
        with pytest.raises(SettingError, match=rf"{re.escape(key)} of .*{own}.*run\.trust_code=true"):
            asked(stolen)
    assert asked(tmp_path / "metrics", f"metrics=[accuracy,{own}]")
    assert asked(tmp_path / "client.loss", f"client.loss={own}")
    assert asked(tmp_path / "client.loss", "run.trust_code=true").client.loss == own


@pytest.mark.parametrize("call", [RESUME, "run.extend=1"])
def test_what_was_typed_is_blamed_and_not_what_the_run_recorded(broken, call):
    with pytest.raises(SettingError, match="seed is 'abc'; it should be a valid integer"):
        run_settings([f"run.directory={broken}", call, "seed=abc"])


def test_a_directory_without_a_run_is_refused_unless_a_new_one_is_described(tmp_path):
    for beside in ([], ["output=json"], ["engine.workers=1", "logger=none"], ["engine=ray"]):
        with pytest.raises(RunDirectoryError, match="nosuch holds no run to continue"):
            asked(tmp_path / "nosuch", *beside)
    with pytest.raises(RunDirectoryError, match=r"nosuch holds no run that run\.extend"):
        run_settings([f"run.directory={tmp_path / 'nosuch'}", "run.extend=1", "seed=0"])
    assert typed("run.directory=nosuch", RESUME, cwd=tmp_path) == 2  # a typo begins no run
    assert list(tmp_path.iterdir()) == []
