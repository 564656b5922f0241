"""A directory is tried out before a run, and nothing of the trial stays."""

from pathlib import Path

import pytest

from experiments.run_files import directory
from experiments.run_files.directory import try_out
from fedmf.errors import RunDirectoryError


def below(folder):
    return sorted(folder.rglob("*"))


@pytest.mark.parametrize("path", ["", "kept", "new", "kept/new/newer/newest"])
def test_a_directory_that_can_be_made_is_left_as_it_was(tmp_path, path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("of the user")
    before = below(tmp_path)
    try_out("directory", tmp_path / path)
    assert below(tmp_path) == before


def test_a_directory_that_cannot_be_made_is_refused_by_its_key():
    with pytest.raises(RunDirectoryError, match="directory is /proc/x, which cannot be made: "):
        try_out("directory", Path("/proc/x"))


def test_parents_that_were_made_are_removed_where_the_last_cannot_be(tmp_path):
    with pytest.raises(RunDirectoryError, match="which cannot be made: File name too long"):
        try_out("directory", tmp_path / "a" / "b" / ("c" * 300))
    assert below(tmp_path) == []


def test_a_directory_that_cannot_be_written_to_is_refused(tmp_path, monkeypatch):
    def refuse(*given, **named):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(directory, "TemporaryDirectory", refuse)
    with pytest.raises(RunDirectoryError, match="which cannot be written to: Read-only file system; name"):
        try_out("directory", tmp_path / "a")
    assert below(tmp_path) == []
