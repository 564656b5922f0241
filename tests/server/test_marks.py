"""How far a run got, as it is counted outside its directory."""

import contextlib
import os
import stat
import threading
import time
from pathlib import Path

import pytest

from server import marks


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    """The folder of this test's marks, which is not there yet."""
    monkeypatch.setenv("FEDMF_STATE", str(tmp_path / "above" / "state"))
    marks._warn.cache_clear()
    return tmp_path / "above" / "state"


def test_marks_of_runs_are_read_as_written_by_their_owner_only(state):
    assert marks.read("one") is None
    for released in (0, 3, 12):
        assert marks.write("one", released) is True
        assert marks.read("one") == released
    assert marks.write("two", 5)
    assert (marks.read("one"), marks.read("two")) == (12, 5)
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert stat.S_IMODE((state / "one").stat().st_mode) == 0o600
    marks.end("one")
    assert (marks.read("one"), marks.read("two")) == (
        12,
        5,
    )  # it stays: another copy must not release round 12 again
    assert (state / "one").read_bytes() == b"12 over\n"
    marks.end("three")  # there may be none
    assert marks.read("three") is None


def test_a_mark_that_is_no_number_is_no_mark(state):
    marks.write("one", 3)
    (state / "one").write_text("three")
    assert marks.read("one") is None


def test_without_a_name_of_its_own_the_folder_is_in_the_home_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for unset in (True, False):
        if unset:
            monkeypatch.delenv("FEDMF_STATE")
        else:
            monkeypatch.setenv("FEDMF_STATE", "")
        assert marks.folder() == tmp_path / ".local" / "state" / "fedmf"


def test_without_a_home_or_a_folder_to_write_in_it_is_said_once_and_nothing_is_counted(
    monkeypatch, tmp_path, caplog
):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDMF_STATE", str(tmp_path / "file"))
    for _ in range(2):
        assert marks.write("one", 3) is False
        assert marks.read("one") is None
    assert caplog.text.count(f"outside its directory: {tmp_path / 'file'} (") == 1
    caplog.clear()
    monkeypatch.delenv("FEDMF_STATE")
    monkeypatch.setattr(Path, "home", homeless)
    for _ in range(2):
        assert marks.write("one", 3) is False
        assert marks.read("one") is None
        marks.end("one")
    assert caplog.text.count("the home directory (Could not determine home directory.)") == 1


def test_marks_of_runs_that_ended_a_year_ago_are_removed_and_no_others(state):
    for run in ("old", "young", "going"):
        marks.write(run, 3, is_over=run != "going")
    for run in ("old", "going"):
        long_ago = (state / run).stat().st_mtime - marks._KEPT_SECONDS - 1
        os.utime(state / run, (long_ago, long_ago))
    marks.end("young")
    assert sorted(path.name for path in state.iterdir()) == ["going", "young"]


def test_who_waited_for_a_mark_holds_the_one_that_took_its_place(state):
    """Else a third copy would hold the new one at the same time."""
    run, inside = "a" * 32, threading.Event()
    marks.write(run, 1)

    def wait_for_it():
        with marks.held(run):
            inside.set()

    waiting = threading.Thread(target=wait_for_it)
    with contextlib.ExitStack() as new:
        with marks.held(run):
            waiting.start()
            time.sleep(0.3)
            marks.write(run, 2)
            new.enter_context(marks.held(run))
        assert not inside.wait(0.5)
    assert inside.wait(30)
    waiting.join()


def test_copies_write_their_count_aside_under_names_of_their_own(state, monkeypatch):
    names, real = [], os.replace
    monkeypatch.setattr(os, "replace", lambda old, new: (names.append(old), real(old, new)))
    for released in (1, 2):
        marks.write("a" * 32, released)
    assert len(set(names)) == 2
    assert [path.read_text() for path in state.iterdir()] == ["2\n"]


def test_what_ended_a_year_ago_is_removed_and_a_run_under_way_is_not(state):
    for run, text in (("a" * 32, "3\n"), ("b" * 32, "8 over\n"), ("c" * 32, "9 over\n"), ("d.1.new", "")):
        state.mkdir(parents=True, exist_ok=True)
        (state / run).write_text(text)
        if run[0] != "c":
            os.utime(state / run, (0, time.time() - 370 * 24 * 3600))
    marks.write("e" * 32, 2)
    marks.end("e" * 32)
    assert sorted(path.name[0] for path in state.iterdir()) == ["a", "c", "e"]
