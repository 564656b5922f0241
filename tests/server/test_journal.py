"""The journal of releases: what is whole in it was released, whatever a crash or a disk did to the rest."""

import os

import numpy as np
import pytest

from fedmf.errors import RunDirectoryError
from plans import random_vector
from server import journal
from server.state import Release


def test_every_prefix_of_the_journal_holds_the_rounds_that_were_whole(tmp_path):
    path = tmp_path / "journal"
    releases = [Release(k, random_vector(5, 1.0, k), (str(k),), 3) for k in (1, 2)]
    ends = []
    for release in releases:
        journal.append(path, release)
        ends.append(path.stat().st_size)
    data = path.read_bytes()
    for length in range(len(data) + 1):
        path.write_bytes(data[:length])
        found = journal.read(path)
        assert [release.round for release in found] == [k + 1 for k, end in enumerate(ends) if length >= end]
    path.write_bytes(data)
    for found, release in zip(journal.read(path), releases, strict=True):
        np.testing.assert_array_equal(found.noisy_sum, release.noisy_sum)
        assert (found.answered, found.cohort_size) == (release.answered, release.cohort_size)


def test_one_flipped_bit_ends_the_journal(tmp_path):
    path = tmp_path / "journal"
    journal.append(path, Release(1, random_vector(5, 1.0), ("1",), 3))
    data = bytearray(path.read_bytes())
    for position in range(len(data)):
        spoiled = bytearray(data)
        spoiled[position] ^= 4
        path.write_bytes(spoiled)
        assert journal.read(path) == []


def test_damage_in_the_middle_of_a_journal_is_refused_not_cut_off(tmp_path):
    path = tmp_path / "journal"
    ends = []
    for number in (1, 2, 3):
        journal.append(path, Release(number, random_vector(5, 1.0), ("1",), 3))
        ends.append(path.stat().st_size)
    data = bytearray(path.read_bytes())
    data[ends[0] + 20] ^= 4
    path.write_bytes(data)
    with pytest.raises(RunDirectoryError, match="damaged after round 1"):
        journal.read(path)


def test_a_journal_of_another_version_is_refused_not_taken_for_torn(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "FORMAT", "fedmf-journal-99")
    journal.append(tmp_path / "journal", Release(1, random_vector(5, 1.0), ("1",), 3))
    monkeypatch.undo()
    with pytest.raises(
        RunDirectoryError, match=r"format of .*journal is 'fedmf-journal-99'; this version reads"
    ):
        journal.read(tmp_path / "journal")


def test_a_record_is_whole_although_the_system_takes_a_few_bytes_at_a_time(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:7]))
    journal.append(tmp_path / "journal", Release(1, random_vector(5, 1.0), ("1",), 3))
    assert [release.round for release in journal.read(tmp_path / "journal")] == [1]


def test_a_new_journal_has_its_name_on_disk_too(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("server.journal.sync_folder", synced.append)
    for number in (1, 2):
        journal.append(tmp_path / "journal", Release(number, random_vector(5, 1.0), ("1",), 3))
    assert synced == [tmp_path]


def test_what_could_not_be_forced_to_disk_is_not_in_the_journal(tmp_path, monkeypatch):
    path = tmp_path / "journal"
    journal.append(path, Release(1, random_vector(5, 1.0), ("1",), 3))
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        journal.append(path, Release(2, random_vector(5, 1.0), ("1",), 3))
    assert path.read_bytes() == before


def test_a_release_whose_file_name_is_not_on_disk_is_not_in_the_journal(tmp_path, monkeypatch):
    """Else the round, which counts as unreleased, would be in the journal twice once it is run again."""

    def fail(folder):
        raise OSError("No space left on device")

    release = Release(1, np.ones(3, "f4"), ("a",), 1)
    with monkeypatch.context() as patched:
        patched.setattr(journal, "sync_folder", fail)
        with pytest.raises(OSError, match="No space"):
            journal.append(tmp_path / "journal.bin", release)
    assert journal.read(tmp_path / "journal.bin") == []
    journal.append(tmp_path / "journal.bin", release)
    assert [held.round for held in journal.read(tmp_path / "journal.bin")] == [1]
