"""How far a run got, as it is counted outside its directory; what is taken for the same directory, and the same clients."""

import fcntl
import json
import os
import platform
import stat
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fedmf.errors import RunDirectoryError
from server import copies
from server.copies import Clients, Origin, Place

RUN = "a" * 32
HERE = Place("machine", "/runs/a", 7, 42)
PEOPLE = Clients(3, lambda key: f"three people under {key.reveal().hex()}")


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    """The folder of this test's counts, which is not there yet."""
    monkeypatch.setenv("FEDMF_STATE", str(tmp_path / "above" / "state"))
    copies._warn.cache_clear()
    return tmp_path / "above" / "state"


def test_counts_of_runs_are_read_as_written_by_their_owner_only(state):
    assert copies.read_count("one") is None
    for released in (0, 3, 12):
        assert copies.write_count("one", released) is True
        assert copies.read_count("one") == released
    assert copies.write_count("two", 5)
    assert (copies.read_count("one"), copies.read_count("two")) == (12, 5)
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert stat.S_IMODE((state / "one").stat().st_mode) == 0o600
    (state / "one").write_text("three")
    assert copies.read_count("one") is None


@pytest.mark.parametrize("named", [None, ""])
def test_without_a_name_of_its_own_the_folder_is_in_the_home_directory(monkeypatch, tmp_path, named):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FEDMF_STATE") if named is None else monkeypatch.setenv("FEDMF_STATE", named)
    assert copies.folder() == tmp_path / ".local" / "state" / "fedmf"


@pytest.mark.parametrize("homeless", [False, True])
def test_without_a_home_or_a_folder_to_write_in_a_warning_is_logged_once_and_nothing_is_counted(
    monkeypatch, tmp_path, caplog, homeless
):
    def home():
        raise RuntimeError("Could not determine home directory.")

    said = f"outside its directory: {tmp_path / 'file'} ("
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDMF_STATE", str(tmp_path / "file"))
    if homeless:
        said = "the home directory (Could not determine home directory.)"
        monkeypatch.delenv("FEDMF_STATE")
        monkeypatch.setattr(Path, "home", home)
    for _ in range(2):
        assert copies.write_count("one", 3) is False
        assert copies.read_count("one") is None
        copies.tidy()
    assert caplog.text.count(said) == 1


def test_counts_that_were_written_last_a_year_ago_are_removed_when_a_run_begins_and_no_other_file_is(
    state, tmp_path
):
    names = {"old": "0" * 32, "young": "1" * 32, "mine": "notes.txt"}
    for name in names.values():
        copies.write_count(name, 3)
    for name in ("old", "mine"):
        long_ago = time.time() - copies._KEPT_SECONDS - 1
        os.utime(state / names[name], (long_ago, long_ago))
    begun = Origin.begin(tmp_path, PEOPLE, 0)
    assert sorted(path.name for path in state.iterdir()) == sorted([names["young"], names["mine"], begun.run])


@pytest.mark.parametrize("call", ["ftruncate", "fsync"])
def test_killed_while_it_counts_a_run_has_the_count_before_or_after(monkeypatch, call):
    """The count is never empty in between."""

    def killed(*_):
        raise KeyboardInterrupt

    for released in (9, 10):
        copies.write_count(RUN, released)
        with monkeypatch.context() as patched:
            patched.setattr(os, call, killed)
            with pytest.raises(KeyboardInterrupt):
                copies.write_count(RUN, released + 1)
        assert copies.read_count(RUN) == released + 1


def test_a_round_is_counted_once_and_a_directory_with_fewer_rounds_than_that_is_an_error(tmp_path):
    origin = Origin.begin(tmp_path, PEOPLE, 3)
    with origin.counting(tmp_path, 4), copies._opened(origin.run) as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as another copy would, which waits
    with pytest.raises(RunDirectoryError, match="from another copy"), origin.counting(tmp_path, 4):
        pytest.fail("the round is released again")
    origin.check_place(tmp_path, 4, accept_copy=False)
    with pytest.raises(RunDirectoryError, match="an older state: 4 of its rounds"):
        origin.check_place(tmp_path, 3, accept_copy=False)


def test_a_link_in_the_place_of_a_count_is_not_written_through(state, tmp_path):
    (tmp_path / "own").write_text("years of work")
    state.mkdir(parents=True)
    (state / RUN).symlink_to(tmp_path / "own")
    assert copies.write_count(RUN, 1) is False
    assert (tmp_path / "own").read_text() == "years of work"


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"path": "/runs/b"}, True),  # moved within its file system
        ({"device": 8}, True),  # after a reboot
        ({"path": "/runs/b", "device": 8}, False),  # the same number in another file system
        ({"inode": 43}, False),  # a copy, put in the place of the other one or next to it
        ({"inode": 43, "path": "/runs/b"}, False),
        ({"machine": "another"}, False),
    ],
)
def test_a_directory_is_the_same_when_it_was_moved_or_its_device_renumbered_and_a_copy_is_not(changes, same):
    assert replace(HERE, **changes).is_same(HERE) == same
    assert HERE.is_same(replace(HERE, **changes)) == same


def test_a_run_notes_its_place_and_this_machine_under_no_name_of_theirs(tmp_path, monkeypatch):
    """However the directory is written; and the note is read again without its keys."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    one, other = (Origin.begin(tmp_path / name, PEOPLE, 0) for name in ("a", "link"))
    assert one.place == other.place == Place.of(tmp_path / "b" / ".." / "a")
    assert not one.place.is_same(Place.of(tmp_path / "b"))
    assert one.digest == PEOPLE.digest(one.key) != other.digest  # of the same people
    assert (one.is_counted, copies.read_count(one.run)) == (True, 0)
    document = json.loads(json.dumps(one.to_json()))
    assert "key" not in document
    assert Origin.from_json(document, one.key) == one
    assert not any(said in repr(one) for said in (one.digest, one.key.reveal().hex(), platform.node()))
    for known in (tmp_path / "machine-id", tmp_path / "missing"):  # told by its id, or by its name
        (tmp_path / "machine-id").write_text("0123abcd")
        monkeypatch.setattr(copies, "_MACHINE_ID", known)
        assert not one.place.is_same(Place.of(tmp_path / "a"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"count": 4}, "began with 3 clients, and the data now hold 4"),
        ({"digest": lambda key: "three others"}, "in another order"),
    ],
)
def test_a_run_continues_with_the_clients_that_it_began_with_only(tmp_path, changes, says):
    origin = Origin.begin(tmp_path, PEOPLE, 0)
    origin.check_clients(tmp_path, PEOPLE)
    with pytest.raises(RunDirectoryError, match=says):
        origin.check_clients(tmp_path, replace(PEOPLE, **changes))
