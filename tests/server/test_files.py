"""Files that are whole or not there, secrets that are overwritten, locks, and files that other accounts could change."""

import contextlib
import os
import subprocess
import sys

import numpy as np
import pytest

from experiments.settings.nodes import check_own_file
from fedmf.errors import RunDirectoryError, SettingError
from fedmf.npz import read_npz
from nodes import Clock
from server import files
from server.files import erase, locked, write_atomically


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
    steps.clear()
    erase(tmp_path / "secret")
    assert steps == [("force", "secret", "0o600", bytes(3)), ("force", tmp_path.name)]


def test_a_half_written_secret_is_overwritten_too(tmp_path):
    aside = tmp_path / "secret.new"
    aside.write_bytes(b"j" * 100)
    with aside.open("rb") as half:
        write_atomically(tmp_path / "secret", b"k" * 100, mode=0o600, erase_old=True)
        assert half.read() == bytes(100)


def test_a_crash_while_writing_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def crash(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_file_that_cannot_be_written_is_called_by_its_own_name(tmp_path):
    (tmp_path / "closed").write_text("no folder")
    for folder, error in (("missing", FileNotFoundError), ("closed", NotADirectoryError)):
        path = tmp_path / folder / "nodes.json"
        with pytest.raises(error) as refusal:
            write_atomically(path, b"x", erase_old=folder == "closed")
        assert refusal.value.filename == str(path)


# locks


@pytest.fixture
def lock(tmp_path):
    (tmp_path / "run/checkpoint").mkdir(parents=True)
    return tmp_path / "run/checkpoint/lock"


def test_lock_admits_one_process_and_is_freed_by_its_death(lock):
    """A worker that outlives a killed run must not keep others out."""
    program = (
        "import sys, subprocess; from pathlib import Path; from server.files import locked\n"
        "with locked(Path(sys.argv[1])):\n"
        "    worker = subprocess.Popen([sys.executable, '-c', 'input()'], close_fds=False)\n"
        "    print('held', flush=True); worker.wait()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program, str(lock)], **pipes) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(RunDirectoryError, match="another process"), locked(lock):
            pass
        holder.kill()
        holder.wait()
        with locked(lock):
            pass  # the worker waits for its input


def test_a_lock_that_is_being_given_back_is_waited_for_and_one_that_is_not_for_so_long(lock, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(files, "time", clock)
    with contextlib.ExitStack() as holder:
        holder.enter_context(locked(lock))
        with pytest.raises(RunDirectoryError, match="another process"), locked(lock, 0.3):
            pass
        assert clock.now == pytest.approx(0.35, abs=0.06)

        def give_back(seconds):
            clock.now += seconds
            if clock.now > 20:
                holder.close()

        monkeypatch.setattr(clock, "sleep", give_back)
        with locked(lock, 30):
            assert clock.now > 20


# other accounts


@pytest.fixture
def kept(tmp_path):
    """A file in a folder of its own, both for their owner alone."""
    (tmp_path / "folder").mkdir(mode=0o700)
    path = tmp_path / "folder" / "list"
    write_atomically(path, b"x", mode=0o600)
    check_own_file("nodes", path)
    return path


@pytest.mark.parametrize(
    ("above", "mode", "is_refused"),
    [
        (0, 0o620, True), (0, 0o602, True), (0, 0o644, False),
        (1, 0o720, True), (1, 0o702, True), (1, 0o755, False),
        (1, 0o1777, False),  # others cannot replace what is there, as in /tmp
        (2, 0o777, True),
    ],
)  # fmt: skip
def test_a_file_that_other_accounts_can_change_is_refused_by_its_mode_and_that_of_any_folder_above(
    kept, tmp_path, above, mode, is_refused
):
    """Also where it is named by a link."""
    path = (kept, *kept.parents)[above]
    link = tmp_path / "link"
    link.symlink_to(kept)
    before = path.stat().st_mode & 0o7777
    path.chmod(mode)
    try:
        for name in (kept, link):
            if is_refused:
                with pytest.raises(
                    SettingError, match=rf"nodes is {name}, .*others than its owner may write to.*chmod go-w"
                ):
                    check_own_file("nodes", name)
            else:
                check_own_file("nodes", name)
    finally:
        path.chmod(before)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other accounts")
def test_a_file_of_another_account_is_refused_and_one_of_root_is_not(kept, monkeypatch):
    for path in (kept, kept.parent):
        os.chown(path, 12345, -1)
        with pytest.raises(SettingError, match=r"belongs to user id 12345"):
            check_own_file("nodes", kept)
        with monkeypatch.context() as patched:
            patched.setattr(files.os, "geteuid", lambda: 12345)  # read by its owner, below folders of root
            check_own_file("nodes", kept)
        os.chown(path, 0, -1)
    monkeypatch.setattr(files.os, "geteuid", lambda: 12345)
    check_own_file("nodes", kept)


# files of arrays


def test_whatever_bit_of_a_file_of_arrays_is_flipped_it_is_unreadable_or_the_same():
    stored = files.packed(model=np.array([1.5]))
    unreadable = 0
    for bit in range(8 * len(stored)):
        changed = bytearray(stored)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            found = read_npz(bytes(changed))
        except ValueError:
            unreadable += 1
        else:
            assert [(name, found[name].tolist()) for name in found] == [("model", [1.5])]
    assert unreadable > len(stored)
