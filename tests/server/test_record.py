"""The database of a run: what is in it, who may read it, and what damage and full disks do to it."""

import random
import resource
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from fedmf.errors import FedmfError, ParticipationError, ReleaseOrderError, RunDirectoryError
from plans import SGD, advance, begun, kept_releases, killed, random_vector, same, small_plan
from server import record
from server.record import Record
from server.state import Count, Release


@pytest.fixture
def cut_off(tmp_path):
    """A run of nine rounds in three epochs, with a base in mid-epoch and two releases after it, and its last state."""
    plan = small_plan(epochs=4)
    checkpoint, state = begun(plan, tmp_path / "c", every=3)
    checkpoint.record.extend({"seed": 1})
    for number in range(11):
        state = advance(plan, state, checkpoint, [f"{number % 4}-{k}" for k in range(number % 4)])
    return plan, checkpoint, state


def release(number, clients=("a",), epoch=0):
    return Release(number, random_vector(5, 1.0, number), tuple(clients), epoch)


def test_a_round_is_released_once_and_a_client_is_heard_once_in_an_epoch(tmp_path):
    """The primary keys refuse what no register of the process has refused, and nothing of the round is there then."""
    database = Record(tmp_path)
    database.create()
    # In WAL from its creation: a kill at the first transaction leaves no rollback journal, which would be refused.
    assert [path.name for path in tmp_path.iterdir()] == [record.FILE]
    assert database.path.read_bytes()[18:20] == b"\2\2"
    database.append(release(1, "ab"))
    for again, error in (
        (release(1, "cd"), ReleaseOrderError),
        (release(2, "ca"), ParticipationError),
        (release(2, "cc"), ParticipationError),
    ):
        with pytest.raises(error, match=r"round . is not released: UNIQUE constraint failed"):
            database.append(again)
        assert [kept.answered for kept in database.releases(0)] == [("a", "b")]
        database.check()
    database.append(replace(release(2, "ba", epoch=1), count=Count("5ea1ed")))
    database.check()
    with database._writing() as connection:
        connection.execute(
            "UPDATE blob SET bytes = CAST(replace(bytes, '5ea1ed', '5ea1e0') AS BLOB) WHERE owner = 'count'"
        )
    with pytest.raises(RunDirectoryError):
        database.check()
    assert [database.most_epochs(epochs) for epochs in range(3)] == [0, 1, 2]


def test_releases_are_read_as_they_were_written_also_large_and_empty_ones(tmp_path):
    database = Record(tmp_path)
    database.create()
    written = [
        Release(1, random_vector(700_000, 1.0), ("ü:1", "2")),
        Release(2, np.zeros(0, "f4"), (), 1),
    ]
    for one in written:
        database.append(one)
    database.check()
    for one, found in zip(written, database.releases(0), strict=True):
        np.testing.assert_array_equal(one.noisy_sum, found.noisy_sum)
        assert (one.round, one.answered, one.epoch) == (found.round, found.answered, found.epoch)


def test_one_base_is_kept_and_the_sums_after_the_one_before(cut_off):
    _, checkpoint, _ = cut_off
    database = checkpoint.record
    assert database.saved() == 9
    assert [kept.round for kept in kept_releases(database)] == [9, 10, 11]
    with pytest.raises(RunDirectoryError, match="sum of round 8 is not"):
        database.releases(7)
    assert database.released() == 11
    assert database.most_epochs(3) == 3  # who was heard in rounds 2, 6 and 10: their rows stay


def test_others_read_while_a_run_writes_and_change_nothing(cut_off):
    plan, checkpoint, state = cut_off
    other = Record(checkpoint.folder)
    assert other.released() == 11
    advance(plan, state, checkpoint, [])
    assert other.released() == 12
    checkpoint.close()
    before = {path.name: path.read_bytes() for path in checkpoint.folder.iterdir()}
    assert other.saved() == 12
    other.check()
    assert {path.name: path.read_bytes() for path in checkpoint.folder.iterdir()} == before


def test_where_there_is_no_database_nothing_is_made(tmp_path):
    assert (Record(tmp_path).saved(), Record(tmp_path).released()) == (None, 0)
    assert list(tmp_path.iterdir()) == []


def test_the_log_is_forced_to_disk_at_every_commit(tmp_path):
    """In a process without the tests' own connections."""
    program = (
        "import sys; from pathlib import Path; from server.record import Record; from server.state import Release\n"
        "import numpy as np; r = Record(Path(sys.argv[1])); r.create(); r.append(Release(1, np.ones(3, 'f4'), ('a',)))\n"
        "print(*(r._writer.execute(f'PRAGMA {n}').fetchone()[0] for n in ('synchronous', 'journal_mode', 'trusted_schema')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True
    )
    assert done.stdout == "2 wal 0\n"


def outcome(plan, checkpoint):
    """Return the state that a resume finds and what else it reads, or the sentence by which it is refused."""
    try:
        state, replayed = checkpoint.restore(plan, SGD)
        rest = (checkpoint.record.about(), checkpoint.record.most_epochs(9))
        return state, [(one.round, one.answered, one.noisy_sum.tobytes()) for _, one in replayed], rest
    except FedmfError as error:
        return str(error)


@pytest.mark.parametrize("name", [record.FILE, f"{record.FILE}-wal"])
def test_no_flipped_bit_makes_a_resume_another_one(cut_off, tmp_path, name):
    """It is refused, or the bit was of no use; in the log it may end the log there, and what is counted outside is missing."""
    plan, checkpoint, _ = cut_off
    if name == record.FILE:
        checkpoint.close()
    found = killed(checkpoint, tmp_path / "k")
    whole = outcome(plan, found)
    data = (found.folder / name).read_bytes()
    choose, refused, shorter = random.Random(name), 0, 0
    for _ in range(150):
        place = choose.randrange(len(data))
        flipped = data[:place] + bytes([data[place] ^ 1 << choose.randrange(8)]) + data[place + 1 :]
        (found.folder / name).write_bytes(flipped)
        (found.folder / f"{record.FILE}-shm").unlink(missing_ok=True)
        seen = outcome(plan, found)
        if isinstance(seen, str):
            assert 20 < len(seen) < 600
            refused += 1
        elif name != record.FILE and found.record.released() < 11:
            shorter += 1
        else:
            same(seen[0], whole[0])
            assert seen[1:] == whole[1:]
    assert refused > 12 or shorter > 25


def test_a_database_cut_short_is_refused(cut_off, tmp_path):
    plan, checkpoint, _ = cut_off
    checkpoint.close()
    data = (checkpoint.folder / record.FILE).read_bytes()
    for length in (0, 1, 50, 4096, *range(5000, len(data) - 4096, 3333)):
        (checkpoint.folder / record.FILE).write_bytes(data[:length])
        with pytest.raises(RunDirectoryError, match=r"run\.sqlite is damaged"):
            checkpoint.restore(plan, SGD)


@pytest.mark.parametrize("room", [0, 3, 40])
def test_without_room_a_round_is_not_released_and_later_it_is(tmp_path, room):
    """In a process that may write no file beyond a size, as on a full disk: a round is not released, and the run continues."""
    plan = small_plan(dimension=9000)
    checkpoint, state = begun(plan, tmp_path / "c", every=100)
    log = checkpoint.folder / f"{record.FILE}-wal"
    before = checkpoint.record.released()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size + 4000 * room, limits[1]))
    try:
        with pytest.raises(OSError, match=r"disk") as error:  # noqa: PT012
            while True:
                state, before = advance(plan, state, checkpoint), before + 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error.value.filename == str(checkpoint.folder / record.FILE)
    found = killed(checkpoint, tmp_path / "k")
    same(found.restore(plan, SGD)[0], state)
    assert found.record.released() == before
    after = advance(plan, state, checkpoint)
    same(checkpoint.restore(plan, SGD)[0], after)


def test_a_rollback_journal_is_refused_before_sqlite_would_remove_what_it_names(cut_off):
    """SQLite plays it back, and removes any file that it names as the journal of several databases."""
    _, checkpoint, state = cut_off
    checkpoint.record.close()
    journal = checkpoint.folder / f"{record.FILE}-journal"
    journal.write_bytes(b"a journal")
    for use in (
        lambda: Record(checkpoint.folder).saved(),
        lambda: Record(checkpoint.folder).append(release(12, "z", 2)),
    ):
        with pytest.raises(RunDirectoryError, match="is a rollback journal, which no run writes"):
            use()
    assert journal.read_bytes() == b"a journal"
    checkpoint.begin(state)  # a new run in its place
    assert not journal.exists()
