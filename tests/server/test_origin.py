"""What a directory says of where its run began, and what is taken for the same directory."""

import json
import stat
from dataclasses import replace

import pytest

from fedmf.errors import RunDirectoryError
from fedmf.randomness import SecretKey
from server import origin
from server.origin import ORIGIN, Clients, Origin, Place

HERE = Place("machine", "/runs/a", 7, 42)
PEOPLE = Clients(3, lambda key: f"three people under {key.reveal().hex()}")


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
    assert (place.machine, place.path) == (origin.machine_digest(), str(tmp_path / "a"))
    assert place == Place.of(tmp_path / "b" / ".." / "a") == Place.of(tmp_path / "link")
    assert not place.is_same(Place.of(tmp_path / "b"))
    about = (tmp_path / "a").stat()
    assert (place.device, place.inode) == (about.st_dev, about.st_ino)


def test_a_machine_is_told_by_its_id_or_by_its_name_and_neither_is_shown(tmp_path, monkeypatch):
    file = tmp_path / "machine-id"
    monkeypatch.setattr(origin, "_MACHINE_ID", file)
    found = []
    for known in (None, "", "0123456789abcdef\n", "0123456789abcdee\n"):
        if known is not None:
            file.write_text(known)
        for name in ("one", "two"):
            monkeypatch.setattr("platform.node", lambda name=name: name)
            found.append(origin.machine_digest())
            assert found[-1] == origin.machine_digest()
            assert name not in found[-1]
            assert not known or known.strip() not in found[-1]
    by_name, by_id = found[:4], found[4:]
    assert by_name[:2] == by_name[2:]
    assert by_name[0] != by_name[1]
    assert by_id[0] == by_id[1] != by_id[2] == by_id[3]
    assert by_id[0] not in by_name
    assert {len(digest) for digest in found} == {32}


def test_what_a_run_notes_is_read_again_as_it_was_by_its_owner_only(tmp_path):
    begun = Origin.of(tmp_path, PEOPLE)
    assert begun.marked is False
    assert begun.digest == PEOPLE.digest(begun.key)
    for noted in (begun, replace(begun, marked=True)):
        noted.save(tmp_path)
        assert origin.load(tmp_path) == noted
        assert stat.S_IMODE((tmp_path / ORIGIN).stat().st_mode) == 0o600


def test_every_run_has_an_id_and_a_key_of_its_own_which_it_does_not_show(tmp_path):
    one, other = Origin.of(tmp_path, PEOPLE), Origin.of(tmp_path, PEOPLE)
    assert one.run != other.run
    assert len(one.run) == 32
    assert one.digest != other.digest  # of the same people
    assert one.digest not in repr(one)
    assert one.key.reveal().hex() not in repr(one)


def test_a_run_goes_on_with_the_clients_that_it_began_with_only(tmp_path):
    begun = Origin.of(tmp_path, PEOPLE)
    begun.refuse_other_clients(tmp_path, PEOPLE)
    with pytest.raises(RunDirectoryError, match="began with 3 clients, and the data now hold 4"):
        begun.refuse_other_clients(tmp_path, replace(PEOPLE, count=4))
    with pytest.raises(RunDirectoryError, match="in another order"):
        begun.refuse_other_clients(tmp_path, replace(PEOPLE, digest=lambda key: "three others"))


@pytest.mark.parametrize("spoil", ["no json", "[]", "{}", "no key", "short key", "no place", "too much"])
def test_a_damaged_origin_is_refused_and_a_missing_one_is_a_run_that_is_over(tmp_path, spoil):
    assert origin.load(tmp_path) is None
    Origin.of(tmp_path, PEOPLE).save(tmp_path)
    document = json.loads((tmp_path / ORIGIN).read_text())
    changed = {
        "no key": {name: value for name, value in document.items() if name != "key"},
        "short key": document | {"key": "00ff"},
        "no place": {name: value for name, value in document.items() if name != "place"},
        "too much": document | {"more": 1},
    }
    (tmp_path / ORIGIN).write_text(json.dumps(changed[spoil]) if spoil in changed else spoil)
    with pytest.raises(RunDirectoryError, match=r"origin\.json is damaged"):
        origin.load(tmp_path)


def test_a_forgotten_origin_is_overwritten_and_so_is_a_half_written_one(tmp_path):
    begun = Origin.of(tmp_path, PEOPLE)
    begun.save(tmp_path)
    aside = tmp_path / f"{ORIGIN}.new"
    aside.write_text(begun.key.reveal().hex())
    with (tmp_path / ORIGIN).open("rb") as kept, aside.open("rb") as half:
        origin.forget(tmp_path)
        for left in (kept.read(), half.read()):
            assert left
            assert left == bytes(len(left))
    assert list(tmp_path.iterdir()) == []


def test_a_key_that_is_replaced_is_overwritten(tmp_path):
    begun = Origin.of(tmp_path, PEOPLE)
    begun.save(tmp_path)
    with (tmp_path / ORIGIN).open("rb") as old:
        replace(begun, key=SecretKey.generate()).save(tmp_path)
        left = old.read()
    assert left
    assert left == bytes(len(left))
