"""Runs that are killed at any instant go on bit for bit. A crash is an exception that nothing catches."""

import importlib
import itertools
import logging
import os
import resource
import shutil
import sys
import traceback
from pathlib import Path

import numpy as np
import pytest

from crashes import Crash, behind_round, crash_at
from experiments.cli.command import guard
from fedmf.errors import RunStoppedError
from fedmf.mechanisms.families import optimal
from runs import command, composed, metrics, model, run, simulate, summary
from server import strategy
from server.checkpoint import Checkpoint

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]
SMALL = (
    "population.cohort_size=6",
    "population.rounds_per_epoch=3",
    "population.epochs=2",
    "run.reproducible=true",
    "run.checkpoint_every=2",
)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run that nothing interrupts."""
    return run(tmp_path_factory.mktemp("straight") / "r", *SMALL)


def equal(directory, straight):
    np.testing.assert_array_equal(model(directory), model(straight))
    assert metrics(directory) == metrics(straight)
    clocks = {"wall_seconds"}
    assert {k: v for k, v in summary(directory).items() if k not in clocks} == {
        k: v for k, v in summary(straight).items() if k not in clocks
    }


@pytest.mark.parametrize(("call", "after"), [("fsync", n) for n in (1, 2, 5, 8, 9, 13, 17, 18, 19, 20, 22, 25, 26, 33, 36, 43)]
                         + [("replace", n) for n in (1, 2, 3, 5, 6, 8, 9, 11)])  # fmt: skip
def test_killed_at_any_write_the_run_goes_on_bit_for_bit(tmp_path, monkeypatch, straight, call, after):
    crash_at(monkeypatch, call, after)
    try:
        run(tmp_path / "r", *SMALL)
        crashed = False
    except Crash:
        crashed = True
    monkeypatch.undo()
    assert crashed
    run(tmp_path / "r", *SMALL, "run.resume=true")
    equal(tmp_path / "r", straight)


def test_killed_again_and_again(tmp_path, monkeypatch, straight):
    """Now before a release of the resumed run, which some 20 syncs precede, and now after one."""
    kills = 0
    for after in itertools.cycle((7, 31, 16, 26)):
        assert kills < 60, "no release after so many resumes"
        crash_at(monkeypatch, "fsync", after)
        try:
            run(tmp_path / "r", *SMALL, "run.resume=true")
            break
        except Crash:
            kills += 1
        finally:
            monkeypatch.undo()
    assert kills >= 3
    equal(tmp_path / "r", straight)


def test_a_run_that_its_budget_ended_is_finished_after_a_crash_at_the_end(tmp_path, monkeypatch):
    options = (*SMALL, "privacy.max_epsilon=6")
    whole = run(tmp_path / "whole", *options)

    def crash(*_):
        raise Crash

    monkeypatch.setattr("experiments.session.recorder.Recorder.finish", crash)
    with pytest.raises(Crash):
        run(tmp_path / "r", *options)
    monkeypatch.undo()
    run(tmp_path / "r", *options, "run.resume=true")
    equal(tmp_path / "r", whole)
    assert summary(whole)["epochs"] == 1
    assert not list(tmp_path.rglob("secrets*"))  # no key of an epoch that never begins


def test_a_diverged_run_leaves_its_row_and_statement_and_no_key(tmp_path, capsys):
    options = (*SMALL, "optimizer.learning_rate=1e39")
    for resume in ("false", "true"):
        assert guard(lambda: run(tmp_path / "r", *options, f"run.resume={resume}")) == 2  # noqa: B023
        assert "no longer finite after round 1" in capsys.readouterr().err
        assert [row["round"] for row in metrics(tmp_path / "r")] == [1]
        assert (tmp_path / "r/privacy.json").exists()
        assert not list((tmp_path / "r").rglob("secrets*"))


def test_resume_starts_where_there_is_nothing(tmp_path, straight, capsys):
    (tmp_path / "empty").mkdir()
    for name in ("absent", "empty"):
        run(tmp_path / name, *SMALL, "run.resume=true")
        assert f"nothing to resume in {tmp_path / name}: a new run begins" in capsys.readouterr().err
        equal(tmp_path / name, straight)


def test_a_crash_before_the_first_release_leaves_the_key_as_it_was(tmp_path, monkeypatch):
    """Not reproducible, so that only the saved key can give the same noise twice."""
    options = [option for option in SMALL if "reproducible" not in option]
    crash_at(monkeypatch, "fsync", 18)  # the checkpoint of round 0 is whole, no release is written
    with pytest.raises(Crash):
        run(tmp_path / "r", *options)
    monkeypatch.undo()
    secret = tmp_path / "r/checkpoint/secrets.npz"
    before = np.load(secret)["key"].tobytes()
    seen = []
    monkeypatch.setattr(
        "experiments.session.session.run_locally", lambda *_: seen.append(np.load(secret)["key"].tobytes())
    )
    monkeypatch.setattr("experiments.session.recorder.Recorder.finish", lambda *_: {})
    with pytest.raises(RunStoppedError):  # nothing was run
        run(tmp_path / "r", *options, "run.resume=true")
    assert seen == [before]


def test_a_lost_checkpoint_folder_is_asked_for_and_not_made_anew(tmp_path, monkeypatch, capsys):
    interrupted(tmp_path / "r", monkeypatch)
    shutil.rmtree(tmp_path / "r/checkpoint")
    before = {path: path.read_bytes() for path in (tmp_path / "r").rglob("*")}
    assert guard(lambda: run(tmp_path / "r", *SMALL, "run.resume=true")) == 2
    assert "Restore the checkpoint folder" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in (tmp_path / "r").rglob("*")} == before


def interrupted(directory, monkeypatch, after=33):
    crash_at(monkeypatch, "fsync", after)
    with pytest.raises(Crash):
        run(directory, *SMALL)
    monkeypatch.undo()


@pytest.mark.parametrize("kept", [True, False])
def test_another_version_that_computes_other_tables_goes_on_with_those_of_the_epoch(
    tmp_path, monkeypatch, caplog, capsys, kept
):
    """The run is that of one process bit for bit; with the tables lost it is refused and nothing changes."""
    own = (*SMALL, "population.rounds_per_epoch=8", "population.epochs=1", "run.checkpoint_every=1")
    whole = run(tmp_path / "whole", *own)
    with behind_round(Checkpoint, "settle", 3):
        run(tmp_path / "r", *own)
    # What another version is: it finds no older result, and is content with fewer buffers.
    monkeypatch.setenv("FEDMF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(optimal, "EXCESS", 0.3)
    if kept:
        run(tmp_path / "r", *own, "run.resume=true")
        assert "epoch 1 goes on with the tables that it began with" in caplog.text
        equal(tmp_path / "r", whole)
        return
    (tmp_path / "r/checkpoint/mechanism.npz").unlink()
    before = {path: path.read_bytes() for path in (tmp_path / "r").rglob("*") if path.is_file()}
    settings = composed(f"run.directory={tmp_path / 'r'}", *own, "run.resume=true")
    assert guard(lambda: simulate(settings)) == 2
    assert "began with other tables" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in before} == before


MINE = """
import numpy as np
from fedmf.mechanisms import strategy_family

def matrix(workload):
    ages = np.subtract.outer(np.arange(workload.rounds), np.arange(workload.rounds))
    return np.tril({share} ** np.maximum(ages, 0))

FAMILY = strategy_family("mine", matrix)
"""


def test_another_matrix_behind_the_same_import_path_does_not_go_on(tmp_path, monkeypatch, capsys):
    """Rows of one matrix before the crash and of another after it would have a larger sensitivity than either."""
    monkeypatch.syspath_prepend(tmp_path)
    own = (*SMALL, "mechanism=custom", "mechanism.name=mine_of_the_resume_tests:FAMILY")
    file = tmp_path / "mine_of_the_resume_tests.py"

    def written(share):
        file.write_text(MINE.replace("{share}", share))
        importlib.invalidate_caches()
        sys.modules.pop("mine_of_the_resume_tests", None)

    written("0.50")
    with monkeypatch.context() as patched:
        crash_at(patched, "fsync", 26)
        with pytest.raises(Crash):
            run(tmp_path / "r", *own)
    written("0.9")
    settings = composed(f"run.directory={tmp_path / 'r'}", *own, "run.resume=true")
    assert guard(lambda: simulate(settings)) == 2
    assert "the matrix of mechanism.name is" in capsys.readouterr().err
    written("0.50")
    run(tmp_path / "r", *own, "run.resume=true")
    assert summary(tmp_path / "r")["rounds"] == 6


def test_rounds_shown_but_not_in_the_journal_are_never_run_again(tmp_path, monkeypatch, capsys):
    interrupted(tmp_path / "r", monkeypatch)
    for path in (tmp_path / "r/checkpoint").glob("journal-*"):
        path.unlink()
    newest = sorted((tmp_path / "r/checkpoint").glob("base-*.npz"))[-1]
    if len(metrics(tmp_path / "r")) == int(newest.stem.removeprefix("base-")):
        newest.unlink()
    # Where an older state may go on, the rounds shown still say that it must not.
    assert guard(lambda: run(tmp_path / "r", *SMALL, "run.resume=true", "run.accept_copy=true")) == 2
    assert "must not be run again" in capsys.readouterr().err


def test_resume_of_a_finished_run_changes_nothing(tmp_path, capsys):
    directory = run(tmp_path / "r", *SMALL)
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    run(directory, *SMALL, "run.resume=true")
    assert "finished" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before


def between_checkpoints(directory, monkeypatch):
    """Leave a run that crashed in its first epoch, with no checkpoint since the start; returns the rows shown."""
    crash_at(monkeypatch, "fsync", 29)
    with pytest.raises(Crash):
        run(directory, *SMALL, "run.checkpoint_every=100")
    monkeypatch.undo()
    shown = metrics(directory)
    assert 0 < len(shown) < 3
    return shown


def test_rounds_shown_after_the_last_checkpoint_are_not_run_again_without_their_journal(
    tmp_path, monkeypatch, capsys
):
    """The secrets are as old as the checkpoint: only the metrics tell that rounds were released since."""
    shown = between_checkpoints(tmp_path / "r", monkeypatch)
    (tmp_path / "r/checkpoint/journal-000000.bin").unlink()
    resumed = (*SMALL, "run.checkpoint_every=100", "run.resume=true", "run.accept_copy=true")
    assert guard(lambda: run(tmp_path / "r", *resumed)) == 2
    assert f"shows round {len(shown)}, but its journal ends at round 0" in capsys.readouterr().err
    assert metrics(tmp_path / "r") == shown


def test_a_torn_line_of_metrics_is_written_again(tmp_path, monkeypatch, straight):
    between_checkpoints(tmp_path / "r", monkeypatch)
    path = tmp_path / "r/metrics.jsonl"
    os.truncate(path, path.stat().st_size - 20)
    run(tmp_path / "r", *SMALL, "run.checkpoint_every=100", "run.resume=true")
    equal(tmp_path / "r", straight)


def test_no_log_of_any_level_no_output_and_no_exception_shows_a_secret(tmp_path, monkeypatch, caplog, capsys):
    """A whole run, a crash in it and its resume, with every logger at DEBUG."""
    from fedmf.randomness import SecretKey

    with caplog.at_level(logging.DEBUG):
        crash_at(monkeypatch, "fsync", 33)
        with pytest.raises(Crash) as crash:
            run(tmp_path / "r", *SMALL, "faults.error=0.2")
        monkeypatch.undo()
        run(tmp_path / "r", *SMALL, "faults.error=0.2", "run.resume=true")
    shown = capsys.readouterr()
    text = caplog.text + shown.out + shown.err + "".join(traceback.format_exception(crash.value))
    assert "round" in text
    epoch_keys = [SecretKey.reproducible(0), SecretKey.reproducible(0).ratchet()]
    masks = [
        key.mask_key(str(client), step) for key in epoch_keys for client in range(1437) for step in range(3)
    ]
    for secret in [*epoch_keys, *masks]:
        assert secret.reveal().hex() not in text
        assert repr(secret.reveal())[2:-1] not in text


@pytest.mark.parametrize("faults", [("faults.drop_out=0.3",), ("faults.error=0.2", "faults.delay=0.2",
                                    "faults.duplicate=0.3")])  # fmt: skip
def test_faulty_clients_do_not_stop_a_run_or_its_resume(tmp_path, monkeypatch, faults):
    whole = run(tmp_path / "whole", *SMALL, *faults)
    rows = metrics(whole)
    assert len(rows) == 6
    assert any(row["replies"] < 6 for row in rows)
    crash_at(monkeypatch, "fsync", 33)
    with pytest.raises(Crash):
        run(tmp_path / "r", *SMALL, *faults)
    monkeypatch.undo()
    run(tmp_path / "r", *SMALL, *faults, "run.resume=true")
    equal(tmp_path / "r", whole)


def test_killed_between_attempts_the_run_goes_on_bit_for_bit(tmp_path, monkeypatch):
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
    run(tmp_path / "r", *options, "run.resume=true")
    equal(tmp_path / "r", whole)


def test_too_few_replies_stop_the_run_with_exit_code_1(tmp_path, capsys):
    config = composed(
        f"run.directory={tmp_path / 'r'}", *SMALL, "faults.drop_out=1", "population.min_replies=1"
    )
    assert guard(lambda: simulate(config)) == 1
    assert "population.min_replies=1" in capsys.readouterr().err
    assert not (tmp_path / "r/metrics.jsonl").exists()


@pytest.mark.slow
def test_a_full_disk_stops_the_run_and_loses_nothing(tmp_path):
    """A limit on file sizes stands for the full disk: the journal's next record does not fit."""

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000))

    settings = (f"run.directory={tmp_path / 'r'}", *SMALL, "run.checkpoint_every=100")
    done = command(*settings, cwd=tmp_path, preexec_fn=limit)
    assert done.returncode == 1
    assert "run.resume=true" in done.stderr
    run(tmp_path / "r", *SMALL[:-1], "run.checkpoint_every=100", "run.resume=true")
    whole = run(tmp_path / "whole", *SMALL[:-1], "run.checkpoint_every=100")
    equal(tmp_path / "r", whole)
