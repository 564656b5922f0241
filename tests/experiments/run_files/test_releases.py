"""Releases that a run keeps: all of them, once, whole at every instant, and nothing about who answered."""

import numpy as np
import pytest

from experiments.run_files.directory import RELEASES, keep_release, read_releases, restore_releases
from experiments.run_files.reader import differences
from experiments.settings.values import plain
from experiments.simulate import job
from fedmf.errors import RunDirectoryError
from runs import SMALL, composed, run
from server import journal
from server.state import Release

KEEPING = (*SMALL, "run.keep_releases=true")


def release(number):
    return Release(number, np.full(3, number, np.float32), (f"client {number}",), 4)


def rounds(directory):
    return [kept.round for kept in read_releases(directory)]


def test_a_run_keeps_the_noisy_sum_of_every_round_where_it_is_asked_to(tmp_path):
    directory = run(tmp_path / "kept", *KEEPING)
    assert rounds(directory) == [1, 2, 3, 4, 5, 6]
    assert not (run(tmp_path / "plain", *SMALL) / RELEASES).exists()


def test_a_run_that_is_cut_off_and_resumed_keeps_what_an_uninterrupted_one_does(tmp_path, monkeypatch):
    whole = run(tmp_path / "whole", *KEEPING)
    committed = []

    def cut_off(path, kept, before=journal.append):
        if path.name == RELEASES and kept.round == 4 and not committed:
            committed.append(kept.round)
            raise KeyboardInterrupt
        before(path, kept)

    monkeypatch.setattr(journal, "append", cut_off)
    directory = tmp_path / "resumed"
    with pytest.raises(KeyboardInterrupt):
        run(directory, *KEEPING)
    monkeypatch.undo()
    assert rounds(directory) == [1, 2, 3]
    job(composed(f"run.directory={directory}", *KEEPING, "run.resume=true"), directory)
    assert (directory / RELEASES).read_bytes() == (whole / RELEASES).read_bytes()


def test_a_torn_record_goes_and_what_the_journal_has_beyond_the_file_comes(tmp_path):
    for number in (1, 2, 3):
        keep_release(tmp_path, release(number))
    data = (tmp_path / RELEASES).read_bytes()
    (tmp_path / RELEASES).write_bytes(data[:-5])
    restore_releases(tmp_path, [release(2), release(3), release(4)])
    keep_release(tmp_path, release(5))
    assert rounds(tmp_path) == [1, 2, 3, 4, 5]
    assert read_releases(tmp_path)[0].answered == ()  # nothing tells who answered
    assert b"client" not in (tmp_path / RELEASES).read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == [RELEASES]


def test_releases_of_which_one_is_missing_or_twice_there_are_refused(tmp_path):
    with pytest.raises(RunDirectoryError, match=r"run\.keep_releases=true"):
        read_releases(tmp_path)
    for number in (1, 3):
        keep_release(tmp_path, release(number))
    with pytest.raises(RunDirectoryError, match=r"\[1, 3\]; each must be there once"):
        read_releases(tmp_path)


def test_a_resume_may_not_begin_to_keep_them():
    """The file would begin in the middle: whether releases are kept is a setting of the whole run."""
    kept, plain_run = (plain(composed(*overrides)) for overrides in (KEEPING, SMALL))
    assert [key for key, _, _ in differences(kept, plain_run)] == ["run.keep_releases"]
