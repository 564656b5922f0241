"""Runs that are killed at any instant continue bit for bit. A crash is an exception that nothing catches."""

import importlib
import logging
import os
import resource
import sys
import traceback

import pytest

from checkpoints import changed, forget_round
from crashes import Crash, crash_at, cut
from experiments.cli.command import guard
from fedmf.mechanisms.families import optimal
from fedmf.randomness import SecretKey
from runs import SMALL, assert_equal, command, contents, metrics, refused, run, summary
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


@pytest.mark.parametrize(("call", "after"), [("fsync", n) for n in (1, 2, 5, 8, 9, 10, 11, 15, 16, 17, 18, 20, 22, 24, 31, 32, 36, 39)]
                         + [("replace", n) for n in (1, 2, 3, 5, 6, 8, 9, 11)])  # fmt: skip
def test_killed_at_any_write_the_run_continues_bit_for_bit(tmp_path, straight, call, after):
    directory = interrupted(tmp_path / "r", call=call, after=after)
    assert_equal(run(directory, *SMALL, RESUME), straight)


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


def test_another_version_that_computes_other_tables_continues_with_those_of_the_epoch(
    tmp_path, monkeypatch, caplog
):
    own = (*SMALL, "population.rounds_per_epoch=8", "population.epochs=1", "run.checkpoint_every=1")
    whole, directory = run(tmp_path / "whole", *own), cut(tmp_path / "r", *own, after=3)
    # As another version may do: it is content with fewer buffers.
    monkeypatch.setattr(optimal, "EXCESS", 0.3)
    assert_equal(run(directory, *own, RESUME), whole)
    assert "epoch 1 continues with the tables that it began with" in caplog.text


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


def test_faulty_clients_do_not_stop_a_run_or_its_resume(tmp_path):
    chances = {"drop_out": 0.1, "error": 0.2, "delay": 0.2, "duplicate": 0.3}
    faulty = (*SMALL, *(f"faults.{name}={chance}" for name, chance in chances.items()))
    whole = run(tmp_path / "whole", *faulty)
    assert len(metrics(whole)) == 6
    assert any(row["replies"] < 6 for row in metrics(whole))
    assert_equal(run(cut(tmp_path / "r", *faulty), *faulty, RESUME), whole)


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
