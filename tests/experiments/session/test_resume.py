"""Runs that are killed at any instant continue bit for bit. A crash is an exception that nothing catches."""

import importlib
import logging
import os
import resource
import shutil
import sys
import traceback

import numpy as np
import pytest

from checkpoints import changed, forget_round
from crashes import Crash, behind_round, crash_at
from experiments.cli.command import guard
from fedmf.errors import RunStoppedError
from fedmf.mechanisms.families import optimal
from fedmf.randomness import SecretKey
from runs import SMALL, assert_equal, command, contents, metrics, refused, run, summary
from server import strategy
from server.checkpoint import Checkpoint

pytestmark = pytest.mark.long

SMALL = (*SMALL, "run.checkpoint_every=2")
RESUME = "run.resume=true"


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run that nothing interrupts."""
    return run(tmp_path_factory.mktemp("straight") / "r", *SMALL)


def interrupted(directory, *options, call="fsync", after=34):
    """Leave a run that crashed at the `after`-th call."""
    with pytest.MonkeyPatch.context() as patched:
        crash_at(patched, call, after)
        with pytest.raises(Crash):
            run(directory, *SMALL, *options)
    return directory


@pytest.mark.parametrize(("call", "after"), [("fsync", n) for n in (1, 2, 5, 8, 9, 10, 11, 15, 16, 17, 18, 20, 22, 24, 31, 32, 36, 39)]
                         + [("replace", n) for n in (1, 2, 3, 5, 6, 8, 9, 11)])  # fmt: skip
def test_killed_at_any_write_the_run_continues_bit_for_bit(tmp_path, straight, call, after):
    directory = interrupted(tmp_path / "r", call=call, after=after)
    assert_equal(run(directory, *SMALL, RESUME), straight)


def test_a_run_that_its_budget_ended_is_finished_after_a_crash_at_the_end(tmp_path, monkeypatch):
    options = (*SMALL, "privacy.max_epsilon=6")
    whole = run(tmp_path / "whole", *options)

    def crash(*_):
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr("experiments.session.recorder.Recorder.finish", crash)
        with pytest.raises(Crash):
            run(tmp_path / "r", *options)
    assert_equal(run(tmp_path / "r", *options, RESUME), whole)
    assert summary(whole)["epochs"] == 1
    assert not list(tmp_path.rglob("secrets*"))  # no key of an epoch that never begins


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


def test_a_crash_before_the_first_release_leaves_the_key_as_it_was(tmp_path, monkeypatch):
    """Not reproducible, so that only the saved key can give the same noise twice."""
    # The checkpoint of round 0 is whole, no release is written.
    private = "run.reproducible=false"
    directory = interrupted(tmp_path / "r", private, after=16)
    secret, seen = directory / "checkpoint/secrets.npz", []
    before = np.load(secret)["key"].tobytes()
    monkeypatch.setattr(
        "experiments.session.session.run_locally", lambda *_: seen.append(np.load(secret)["key"].tobytes())
    )
    with pytest.raises(RunStoppedError):  # nothing was run
        run(directory, *SMALL, private, RESUME)
    assert seen == [before]


def test_a_lost_checkpoint_folder_is_asked_for_and_not_made_again(tmp_path, capsys):
    directory = interrupted(tmp_path / "r")
    shutil.rmtree(directory / "checkpoint")
    assert "Restore the checkpoint folder" in refused(capsys, directory, *SMALL, RESUME)


@pytest.mark.parametrize("kept", [True, False])
def test_another_version_that_computes_other_tables_continues_with_those_of_the_epoch(
    tmp_path, monkeypatch, caplog, capsys, kept
):
    """The run is that of one process bit for bit; with the tables lost it is refused and nothing changes."""
    own = (*SMALL, "population.rounds_per_epoch=8", "population.epochs=1", "run.checkpoint_every=1")
    whole, directory = run(tmp_path / "whole", *own), tmp_path / "r"
    with behind_round(Checkpoint, "settle", 3):
        run(directory, *own)
    # What another version is: it finds no older result, and is content with fewer buffers.
    monkeypatch.setenv("FEDMF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(optimal, "EXCESS", 0.3)
    if kept:
        assert_equal(run(directory, *own, RESUME), whole)
        assert "epoch 1 continues with the tables that it began with" in caplog.text
        return
    changed(directory / "checkpoint", "DELETE FROM blob WHERE owner = 'tables'")
    assert "began with other tables" in refused(capsys, directory, *own, RESUME)


MINE = """
import numpy as np
from fedmf.mechanisms import strategy_family

def matrix(workload):
    ages = np.subtract.outer(np.arange(workload.rounds), np.arange(workload.rounds))
    return np.tril({share} ** np.maximum(ages, 0))

FAMILY = strategy_family("mine", matrix)
"""


def test_another_matrix_behind_the_same_import_path_is_refused(tmp_path, monkeypatch, capsys):
    """Rows of one matrix before the crash and of another after it would have a larger sensitivity than either."""
    monkeypatch.syspath_prepend(tmp_path)
    own = ("mechanism=custom", "mechanism.name=mine_of_the_resume_tests:FAMILY")

    def written(share):
        (tmp_path / "mine_of_the_resume_tests.py").write_text(MINE.replace("{share}", share))
        importlib.invalidate_caches()
        sys.modules.pop("mine_of_the_resume_tests", None)

    written("0.50")
    directory = interrupted(tmp_path / "r", *own, after=24)
    written("0.9")
    assert "the matrix of mechanism.name is" in refused(capsys, directory, *SMALL, *own, RESUME)
    written("0.50")
    run(directory, *SMALL, *own, RESUME)
    assert summary(directory)["rounds"] == 6


def test_rounds_shown_but_not_on_record_are_never_run_again(tmp_path, capsys):
    directory = interrupted(tmp_path / "r")
    for number in (2, 3):
        forget_round(directory / "checkpoint", number)
    changed(directory / "checkpoint", "DELETE FROM base WHERE round = 2")
    assert len(metrics(directory)) == 2
    # Where an older state may be resumed, the rounds shown still say that it must not.
    assert guard(lambda: run(directory, *SMALL, RESUME, "run.accept_copy=true")) == 2
    assert "must not be run again" in capsys.readouterr().err


def between_checkpoints(directory):
    """Leave a run that crashed in its first epoch, with no checkpoint since the start."""
    interrupted(directory, "run.checkpoint_every=100", after=27)
    assert 0 < len(metrics(directory)) < 3
    return directory


def test_rounds_shown_after_the_last_checkpoint_are_not_run_again_without_their_record(tmp_path, capsys):
    """The secrets are as old as the checkpoint: only the metrics tell that rounds were released since."""
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
    """A whole run, a crash in it and its resume, with every logger at DEBUG."""
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


@pytest.mark.parametrize("faults", [("faults.drop_out=0.3",), ("faults.error=0.2", "faults.delay=0.2",
                                    "faults.duplicate=0.3")])  # fmt: skip
def test_faulty_clients_do_not_stop_a_run_or_its_resume(tmp_path, faults):
    whole = run(tmp_path / "whole", *SMALL, *faults)
    assert len(metrics(whole)) == 6
    assert any(row["replies"] < 6 for row in metrics(whole))
    interrupted(tmp_path / "r", *faults)
    assert_equal(run(tmp_path / "r", *SMALL, *faults, RESUME), whole)


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


def test_too_few_replies_stop_the_run_with_exit_code_1(tmp_path, capsys):
    silent = ("faults.drop_out=1", "population.min_replies=1")
    assert guard(lambda: run(tmp_path / "r", *SMALL, *silent)) == 1
    assert "population.min_replies=1" in capsys.readouterr().err
    assert not (tmp_path / "r/metrics.jsonl").exists()


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
