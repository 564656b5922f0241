"""The register on disk: a checkpoint adds whom its rounds have heard, and no crash or damage loses or adds anyone."""

import json
import os

import pytest
from hypothesis import given, settings, strategies as st

from checkpoints import SGD, advance, begun, same
from fedmf.errors import RunDirectoryError
from fedmf.register import Register
from plans import small_plan
from server import files, register_log
from server.register_log import RegisterLog, load
from server.state_files import Base


def cohort(number, size=100):
    return [str(client) for client in range(number * size, (number + 1) * size)]


def read(folder, reference):
    return load(folder, json.loads(json.dumps(reference)), otherwise=" Offer.")


def test_a_checkpoint_writes_whom_it_adds_however_many_were_spent_before(tmp_path):
    log, register = RegisterLog(), Register().next_epoch().spend(map(str, range(10**6, 10**6 + 300_000)))
    first = log.save(tmp_path, 0, register)
    grown = []
    for number in range(3):
        register = register.spend(cohort(number))
        reference = log.save(tmp_path, 16 * (number + 1), register)
        assert reference["file"] == first["file"]
        assert read(tmp_path, reference) == register
        grown.append(reference["bytes"] - first["bytes"] - sum(grown))
    assert max(grown) < 12 * 100
    assert read(tmp_path, first).count == 300_000  # what an older base refers to is there as it was


def test_an_epochs_end_is_a_line_too(tmp_path):
    log, register = RegisterLog(), Register().next_epoch().spend(cohort(0))
    log.save(tmp_path, 1, register)
    following = register.next_epoch().spend(cohort(0))
    reference = log.save(tmp_path, 2, following)
    assert reference["file"] == "register-000001.bin"
    assert read(tmp_path, reference) == following


@given(st.lists(st.sampled_from(["spend", "epoch", "save", "save", "restart"]), max_size=30))
@settings(max_examples=40, deadline=None)
def test_what_is_read_back_is_what_was_saved_whatever_the_history(tmp_path_factory, history):
    """With snapshots after few lines, and processes that begin anew."""
    folder = tmp_path_factory.mktemp("log")
    log, register, number, bases = RegisterLog(), Register(), 0, {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(register_log, "FEWEST_BYTES", 600)
        for step in history:
            if step == "spend":
                register, number = register.spend(cohort(number, 9)), number + 1
            elif step == "epoch":
                register, number = register.next_epoch(), number + 1
            elif step == "restart":
                log = RegisterLog()
            else:
                bases[number] = log.save(folder, number, register), register
                bases = {kept: bases[kept] for kept in sorted(bases)[-2:]}
                register_log.remove_others(folder, {reference["file"] for reference, _ in bases.values()})
            for reference, then in bases.values():
                assert read(folder, reference) == then


def test_lines_that_have_grown_long_give_way_to_a_snapshot(tmp_path, monkeypatch):
    monkeypatch.setattr(register_log, "FEWEST_BYTES", 1000)
    log, register, names = RegisterLog(), Register().next_epoch(), []
    for number in range(40):
        register = register.spend(cohort(number, 10))
        reference = log.save(tmp_path, number, register)
        names.append(reference["file"])
        assert reference["bytes"] - reference["snapshot"] <= max(1000, reference["snapshot"] // 8)
    assert 2 < len(set(names)) < 20
    assert read(tmp_path, reference) == register


def test_what_a_crash_left_behind_the_known_length_is_nobodys(tmp_path):
    log, register = RegisterLog(), Register().next_epoch().spend(cohort(0))
    reference = log.save(tmp_path, 0, register)
    path = tmp_path / reference["file"]
    path.write_bytes(path.read_bytes() + b'{"begun": 1, "spent": ["torn' * 99)
    assert read(tmp_path, reference) == register
    later = log.save(tmp_path, 16, register.spend(cohort(1)))
    assert read(tmp_path, later).count == 200
    assert path.stat().st_size == later["bytes"]


def test_a_full_disk_leaves_the_older_reference_and_the_next_save_as_they_should_be(tmp_path, monkeypatch):
    log, register = RegisterLog(), Register().next_epoch().spend(cohort(0))
    reference = log.save(tmp_path, 0, register)
    write = os.write

    def full(descriptor, data):
        write(descriptor, bytes(data)[:50])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "write", full)
        with pytest.raises(OSError, match="No space"):
            log.save(tmp_path, 16, register.spend(cohort(1)))
    assert read(tmp_path, reference) == register
    assert read(tmp_path, log.save(tmp_path, 16, register.spend(cohort(2)))) == register.spend(cohort(2))


@pytest.mark.parametrize("how", ["cut", "flipped", "gone"])
def test_a_damaged_register_is_refused_and_the_checkpoint_before_it_serves(tmp_path, how):
    plan = small_plan()
    checkpoint, state = begun(plan, tmp_path / "c")
    for _ in range(5):
        state = advance(plan, state, checkpoint)
    (path,) = checkpoint.folder.glob("register-*.bin")
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes({"cut": data[:-3], "flipped": data[:-9] + b"x" + data[-8:]}[how])
    with pytest.raises(RunDirectoryError, match=rf"{path.name} .*round 3 before it is kept: move this file"):
        checkpoint.restore(plan, SGD)
    if how != "gone":
        (checkpoint.folder / "base-000004.npz").rename(tmp_path / "away")
        restored, _ = checkpoint.restore(plan, SGD)
        same(restored, state)


def test_no_byte_of_a_register_can_be_another_without_being_noticed(tmp_path):
    log, register = RegisterLog(), Register().next_epoch().spend(cohort(0, 5))
    log.save(tmp_path, 0, register)
    reference = log.save(tmp_path, 1, register.spend(cohort(1, 5)))
    path = tmp_path / reference["file"]
    data = bytearray(path.read_bytes())
    for position in range(0, len(data), 7):
        spoiled = bytearray(data)
        spoiled[position] ^= 16
        path.write_bytes(spoiled)
        with pytest.raises(RunDirectoryError, match=r"damaged.*Offer\.$"):
            read(tmp_path, reference)


def test_a_reference_to_a_file_elsewhere_is_refused(tmp_path):
    reference = RegisterLog().save(tmp_path, 0, Register())
    with pytest.raises(RunDirectoryError, match="is no file of a register"):
        load(tmp_path, reference | {"file": f"../{tmp_path.name}/{reference['file']}"}, otherwise="")


def test_files_that_no_kept_base_refers_to_are_removed(tmp_path):
    plan = small_plan(epochs=3)
    checkpoint, state = begun(plan, tmp_path / "c", every=1)
    for number in range(10):
        if number in (3, 4, 8):  # a process begins
            restored, _ = checkpoint.restore(plan, SGD)
            checkpoint.register.last = None
            checkpoint.rebase(restored)
        state = advance(plan, state, checkpoint)
    assert sorted(path.name for path in checkpoint.folder.glob("register-*")) == ["register-000008.bin"]
    restored, _ = checkpoint.restore(plan, SGD)
    same(restored, state)


def test_registers_of_processes_that_were_killed_before_their_base_are_removed(tmp_path, monkeypatch):
    plan = small_plan()
    checkpoint, state = begun(plan, tmp_path / "c", every=1)
    state = advance(plan, state, checkpoint)
    with monkeypatch.context() as patch:

        def killed(*given):
            raise KeyboardInterrupt

        patch.setattr(Base, "save", killed)
        for _ in range(2):  # a process begins
            checkpoint.register.last = None
            with pytest.raises(KeyboardInterrupt):
                checkpoint.rebase(state)
    left = sorted(path.name for path in checkpoint.folder.glob("register-*"))
    assert left == ["register-000000.bin", "register-000001-1.bin", "register-000001.bin"]
    checkpoint.register.last = None
    checkpoint.rebase(state)
    left = sorted(path.name for path in checkpoint.folder.glob("register-*"))
    assert left == ["register-000000.bin", "register-000001-2.bin"]  # of the base before, and of this one
    state = advance(plan, state, checkpoint)
    assert [path.name for path in checkpoint.folder.glob("register-*")] == ["register-000001-2.bin"]
    restored, _ = checkpoint.restore(plan, SGD)
    same(restored, state)


@pytest.mark.parametrize("damage", [b"", b"no zip file"])
def test_no_register_is_removed_where_a_kept_base_cannot_be_read(damage, tmp_path):
    plan = small_plan()
    checkpoint, state = begun(plan, tmp_path / "c", every=1)
    state = advance(plan, state, checkpoint)
    checkpoint.register.last = None
    (checkpoint.folder / "base-000000.npz").write_bytes(damage)
    checkpoint.rebase(state)
    left = sorted(path.name for path in checkpoint.folder.glob("register-*"))
    assert left == ["register-000000.bin", "register-000001.bin"]


def test_a_link_in_the_place_of_a_register_is_not_written_through(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"kept")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "register-000000.bin").symlink_to(elsewhere)
    log = RegisterLog()
    reference = log.save(folder, 0, Register())
    assert reference["file"] == "register-000000-1.bin"
    path = folder / reference["file"]
    path.unlink()
    path.symlink_to(elsewhere)
    with pytest.raises(OSError, match="symbolic"):
        log.save(folder, 1, Register().spend(["1"]))
    assert elsewhere.read_bytes() == b"kept"
