"""How far a run got, as it is counted outside its directory; what is taken for the same directory, and the same clients."""

import json
import os
import stat
import threading
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
    """The folder of this test's marks, which is not there yet."""
    monkeypatch.setenv("FEDMF_STATE", str(tmp_path / "above" / "state"))
    copies._warn.cache_clear()
    return tmp_path / "above" / "state"


def test_marks_of_runs_are_read_as_written_by_their_owner_only(state):
    assert copies.read_count("one") is None
    for released in (0, 3, 12):
        assert copies.write_count("one", released) is True
        assert copies.read_count("one") == released
    assert copies.write_count("two", 5)
    assert (copies.read_count("one"), copies.read_count("two")) == (12, 5)
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert stat.S_IMODE((state / "one").stat().st_mode) == 0o600
    copies.end_count("one")
    assert (copies.read_count("one"), copies.read_count("two")) == (
        12,
        5,
    )  # it stays: another copy must not release round 12 again
    assert (state / "one").read_bytes() == b"12 over\n"
    copies.end_count("three")  # there may be none
    assert copies.read_count("three") is None


def test_a_mark_that_is_no_number_is_no_mark(state):
    copies.write_count("one", 3)
    (state / "one").write_text("three")
    assert copies.read_count("one") is None


def test_without_a_name_of_its_own_the_folder_is_in_the_home_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for unset in (True, False):
        if unset:
            monkeypatch.delenv("FEDMF_STATE")
        else:
            monkeypatch.setenv("FEDMF_STATE", "")
        assert copies.folder() == tmp_path / ".local" / "state" / "fedmf"


def test_without_a_home_or_a_folder_to_write_in_it_is_said_once_and_nothing_is_counted(
    monkeypatch, tmp_path, caplog
):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDMF_STATE", str(tmp_path / "file"))
    for _ in range(2):
        assert copies.write_count("one", 3) is False
        assert copies.read_count("one") is None
    assert caplog.text.count(f"outside its directory: {tmp_path / 'file'} (") == 1
    caplog.clear()
    monkeypatch.delenv("FEDMF_STATE")
    monkeypatch.setattr(Path, "home", homeless)
    for _ in range(2):
        assert copies.write_count("one", 3) is False
        assert copies.read_count("one") is None
        copies.end_count("one")
    assert caplog.text.count("the home directory (Could not determine home directory.)") == 1


def test_marks_of_runs_that_ended_a_year_ago_are_removed_and_no_others(state):
    for run in ("old", "young", "going"):
        copies.write_count(run, 3, is_over=run != "going")
    for run in ("old", "going"):
        long_ago = (state / run).stat().st_mtime - copies._KEPT_SECONDS - 1
        os.utime(state / run, (long_ago, long_ago))
    copies.end_count("young")
    assert sorted(path.name for path in state.iterdir()) == ["going", "young"]


def test_a_copy_that_waited_for_a_count_reads_what_was_counted_meanwhile(state):
    """Else both would release the same round."""
    found, began = [], threading.Event()
    copies.write_count(RUN, 1)

    def wait_for_it():
        began.set()
        with copies.held(RUN):
            found.append(copies.read_count(RUN))

    waiting = threading.Thread(target=wait_for_it)
    with copies.held(RUN):
        waiting.start()
        assert began.wait(30)
        time.sleep(0.3)
        copies.write_count(RUN, 2)
        assert found == []
    waiting.join(30)
    assert found == [2]


@pytest.mark.parametrize("after", [1, 2])
def test_killed_while_it_counts_a_run_has_the_count_before_or_after(state, monkeypatch, after):
    """The count is never empty in between."""
    for released in (9, 10):
        copies.write_count(RUN, released)

        def killed(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(os, ("ftruncate", "fsync")[after - 1], killed)
            with pytest.raises(KeyboardInterrupt):
                copies.write_count(RUN, released + 1)
        assert copies.read_count(RUN) == released + 1


def test_a_link_in_the_place_of_a_count_is_not_written_through(state, tmp_path):
    (tmp_path / "own").write_text("years of work")
    state.mkdir(parents=True)
    (state / RUN).symlink_to(tmp_path / "own")
    assert copies.write_count(RUN, 1) is False
    assert (tmp_path / "own").read_text() == "years of work"


def test_a_directory_is_the_same_when_it_was_moved_or_its_device_renumbered_and_a_copy_is_not():
    for changes, same in (
        ({}, True),
        ({"path": "/runs/b"}, True),  # moved within its file system
        ({"device": 8}, True),  # after a reboot
        ({"path": "/runs/b", "device": 8}, False),  # the same number in another file system
        ({"inode": 43}, False),  # a copy, put in the place of the other one or beside it
        ({"inode": 43, "path": "/runs/b"}, False),
        ({"machine": "another"}, False),
    ):
        assert replace(HERE, **changes).is_same(HERE) == same
        assert HERE.is_same(replace(HERE, **changes)) == same


def test_the_place_of_a_directory_is_its_own_however_it_is_written(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    place = Place.of(tmp_path / "a")
    assert (place.machine, place.path) == (copies.machine_digest(), str(tmp_path / "a"))
    assert place == Place.of(tmp_path / "b" / ".." / "a") == Place.of(tmp_path / "link")
    assert not place.is_same(Place.of(tmp_path / "b"))
    about = (tmp_path / "a").stat()
    assert (place.device, place.inode) == (about.st_dev, about.st_ino)


def test_a_machine_is_told_by_its_id_or_by_its_name_and_neither_is_shown(tmp_path, monkeypatch):
    file = tmp_path / "machine-id"
    monkeypatch.setattr(copies, "_MACHINE_ID", file)
    found = []
    for known in (None, "", "0123456789abcdef\n", "0123456789abcdee\n"):
        if known is not None:
            file.write_text(known)
        for name in ("one", "two"):
            monkeypatch.setattr("platform.node", lambda name=name: name)
            found.append(copies.machine_digest())
            assert found[-1] == copies.machine_digest()
            assert name not in found[-1]
            assert not known or known.strip() not in found[-1]
    by_name, by_id = found[:4], found[4:]
    assert by_name[:2] == by_name[2:]
    assert by_name[0] != by_name[1]
    assert by_id[0] == by_id[1] != by_id[2] == by_id[3]
    assert by_id[0] not in by_name
    assert {len(digest) for digest in found} == {32}


def begun(directory, clients=PEOPLE):
    return Origin.begin(directory, clients, 0)


def test_what_a_run_notes_is_read_again_as_it_was_without_its_key(tmp_path):
    origin = begun(tmp_path)
    assert origin.is_counted is True
    assert copies.read_count(origin.run) == 0
    assert origin.digest == PEOPLE.digest(origin.key)
    document = json.loads(json.dumps(origin.to_json()))
    assert "key" not in document
    assert Origin.from_json(document, origin.key) == origin


def test_every_run_has_an_id_and_a_key_of_its_own_which_it_does_not_show(tmp_path):
    one, other = begun(tmp_path), begun(tmp_path)
    assert one.run != other.run
    assert len(one.run) == 32
    assert one.digest != other.digest  # of the same people
    assert one.digest not in repr(one)
    assert one.key.reveal().hex() not in repr(one)


def test_a_run_continues_with_the_clients_that_it_began_with_only(tmp_path):
    origin = begun(tmp_path)
    origin.check_clients(tmp_path, PEOPLE)
    with pytest.raises(RunDirectoryError, match="began with 3 clients, and the data now hold 4"):
        origin.check_clients(tmp_path, replace(PEOPLE, count=4))
    with pytest.raises(RunDirectoryError, match="in another order"):
        origin.check_clients(tmp_path, replace(PEOPLE, digest=lambda key: "three others"))
