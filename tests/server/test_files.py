import os
import subprocess
import sys

import pytest

from fedmf.errors import RunDirectoryError
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
