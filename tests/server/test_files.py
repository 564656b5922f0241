import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import zip_heads
from fedmf.errors import RunDirectoryError, SettingError
from fedmf.npz import read_npz
from server import files
from server.files import (
    erase,
    locked,
    refuse_others_file,
    wait_until_unlocked,
    write_atomically,
)


def recorded(monkeypatch):
    """What is forced to disk and renamed from now on, in order; files with their mode and content at that moment."""
    steps = []
    force, rename = os.fsync, os.replace

    def fsync(descriptor):
        name = os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            steps.append(("force", name))
        else:
            with open(f"/proc/self/fd/{descriptor}", "rb") as file:
                steps.append(("force", name, oct(os.fstat(descriptor).st_mode & 0o777), file.read()))
        force(descriptor)

    def replace(old, new):
        steps.append(("rename", old.name, new.name))
        rename(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    return steps


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_file_is_on_disk_before_its_name_and_its_name_before_the_old_one_is_erased(
    tmp_path, monkeypatch, umask
):
    before = os.umask(umask)
    try:
        write_atomically(tmp_path / "secret", b"old", mode=0o600)
        steps = recorded(monkeypatch)
        write_atomically(tmp_path / "secret", b"new", mode=0o600, erase_old=True)
    finally:
        os.umask(before)
    assert steps == [
        ("force", "secret.new", "0o600", b"new"),
        ("rename", "secret.new", "secret"),
        ("force", tmp_path.name),
        ("force", "secret (deleted)", "0o600", bytes(3)),
    ]


def test_zeros_are_on_disk_before_an_erased_file_goes(tmp_path, monkeypatch):
    write_atomically(tmp_path / "secret", b"old", mode=0o600)
    steps = recorded(monkeypatch)
    erase(tmp_path / "secret")
    assert steps == [("force", "secret", "0o600", bytes(3)), ("force", tmp_path.name)]


def test_a_lock_is_not_inherited_by_the_processes_of_its_holder(tmp_path):
    """A worker that outlives a killed run must not keep others out."""
    (tmp_path / "run/checkpoint").mkdir(parents=True)
    path = tmp_path / "run/checkpoint/lock"
    program = "print('running', flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "close_fds": False}
    with locked(path):
        child = subprocess.Popen([sys.executable, "-c", program], **pipes)
        assert child.stdout.readline() == b"running\n"
    try:
        with locked(path):
            pass
    finally:
        child.communicate(b"\n")


def test_an_erased_key_is_overwritten_not_only_unlinked(tmp_path):
    path = tmp_path / "secret"
    write_atomically(path, b"k" * 100, mode=0o600)
    with path.open("rb") as first:
        write_atomically(path, b"l" * 100, mode=0o600, erase_old=True)
        assert first.read() == bytes(100)
    with path.open("rb") as second:
        erase(path)
        assert second.read() == bytes(100)
    assert not path.exists()


def test_a_half_written_secret_is_overwritten_too(tmp_path):
    aside = tmp_path / "secret.new"
    aside.write_bytes(b"k" * 100)
    with aside.open("rb") as old:
        write_atomically(tmp_path / "secret", b"l" * 100, mode=0o600, erase_old=True)
        assert old.read() == bytes(100)


def test_a_crash_while_writing_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def crash(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    monkeypatch.undo()
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


def test_lock_admits_one_process_and_is_freed_by_its_death(tmp_path):
    (tmp_path / "run/checkpoint").mkdir(parents=True)
    path = tmp_path / "run/checkpoint/lock"
    program = (
        "import sys, time; from pathlib import Path; from server.files import locked\n"
        "with locked(Path(sys.argv[1])):\n    print('held', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE)
    try:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(RunDirectoryError, match="another process"), locked(path):
            pass
    finally:
        other.kill()
        other.communicate()
    with locked(path):
        pass


def test_a_lock_that_is_being_given_back_is_waited_for_and_one_that_is_not_for_so_long(tmp_path):
    (tmp_path / "run").mkdir()
    path = tmp_path / "run/lock"
    assert wait_until_unlocked(path, 5) < 0.1  # there is none
    assert not path.exists()
    with locked(path):
        assert 0.3 <= wait_until_unlocked(path, 0.3) < 1
        given_back = threading.Event()
        waited = []
        waiting = threading.Thread(
            target=lambda: waited.append((wait_until_unlocked(path, 30), given_back.is_set()))
        )
        waiting.start()
        time.sleep(0.5)
        given_back.set()
    waiting.join()
    assert 0.4 <= waited[0][0] < 10
    assert waited[0][1]
    with locked(path):  # the wait left it free
        pass


@pytest.fixture
def kept(tmp_path):
    """A file in a folder of its own, both for their owner alone."""
    (tmp_path / "folder").mkdir(mode=0o700)
    path = tmp_path / "folder" / "list"
    write_atomically(path, b"x", mode=0o600)
    refuse_others_file("nodes", path)
    return path


def test_a_file_that_other_accounts_can_change_is_refused_by_its_mode_and_that_of_any_folder_above(kept):
    for path, mode, is_refused in (
        (kept, 0o620, True),
        (kept, 0o602, True),
        (kept, 0o644, False),
        (kept.parent, 0o720, True),
        (kept.parent, 0o702, True),
        (kept.parent, 0o755, False),
        (kept.parent, 0o1777, False),  # others cannot replace what is there, as in /tmp
        (kept.parent.parent, 0o777, True),
    ):
        before = path.stat().st_mode & 0o7777
        path.chmod(mode)
        if is_refused:
            with pytest.raises(SettingError, match=rf"nodes is {kept}, .*others than its owner may write to"):
                refuse_others_file("nodes", kept)
        else:
            refuse_others_file("nodes", kept)
        path.chmod(before)


def test_where_a_link_leads_is_looked_at_too(kept, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(kept)
    refuse_others_file("nodes", link)
    kept.parent.chmod(0o777)
    with pytest.raises(SettingError, match=r"below the folder .*folder, which others"):
        refuse_others_file("nodes", link)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other accounts")
def test_a_file_of_another_account_is_refused_and_one_of_root_is_not(kept, monkeypatch):
    for path in (kept, kept.parent):
        os.chown(path, 12345, -1)
        with pytest.raises(SettingError, match=r"belongs to account 12345"):
            refuse_others_file("nodes", kept)
        monkeypatch.setattr(files.os, "geteuid", lambda: 12345)  # read by its owner, below folders of root
        refuse_others_file("nodes", kept)
        monkeypatch.undo()
        os.chown(path, 0, -1)
    monkeypatch.setattr(files.os, "geteuid", lambda: 12345)
    refuse_others_file("nodes", kept)


def test_a_file_that_cannot_be_written_is_called_by_its_own_name(tmp_path):
    missing = tmp_path / "missing" / "nodes.json"
    with pytest.raises(FileNotFoundError) as refusal:
        write_atomically(missing, b"x")
    assert refusal.value.filename == str(missing)
    closed = tmp_path / "closed" / "nodes.json"
    (tmp_path / "closed").write_text("no folder")
    with pytest.raises(NotADirectoryError) as refusal:
        write_atomically(closed, b"x", erase_old=True)
    assert refusal.value.filename == str(closed)


def test_whatever_bit_of_a_file_of_arrays_is_flipped_it_is_unreadable_or_the_same():
    stored = files.packed(model=np.array([1.5]))
    unreadable = 0
    for bit in range(8 * len(stored)):
        changed = bytearray(stored)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            found = read_npz(bytes(changed))
        except files.UNREADABLE:
            unreadable += 1
        else:
            assert [(name, found[name].tolist()) for name in found] == [("model", [1.5])]
    assert unreadable > len(stored)


@pytest.mark.parametrize("head", zip_heads.HEADS)
def test_a_damaged_head_is_one_of_the_errors_of_a_damaged_file(head, tmp_path):
    """Not RuntimeError or zlib.error, as which zipfile says it and which is no damage that a checkpoint is known to have."""
    path = tmp_path / "base.npz"
    path.write_bytes(zip_heads.flipped(files.packed(about=np.array("{}")), head))
    with pytest.raises(files.UNREADABLE):
        read_npz(path)
