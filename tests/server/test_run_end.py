"""A run that is over stays over, and can be finished, whatever the instant of a crash at its end; a copy releases nothing twice."""

import itertools
import multiprocessing
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest

from fedmf.errors import RunDirectoryError
from plans import SGD, begun, change_secrets, played, small_plan
from server import copies, record
from server.checkpoint import Checkpoint
from server.copies import SECRETS, Place, read_secrets, save_secrets
from server.state import Release

PLAN = small_plan()  # 8 rounds
LINKED = tuple(f"{record.FILE}{end}" for end in ("-wal", "-shm", ""))
CALLS = ("open", "write", "pwrite", "fsync", "replace", "unlink", "ftruncate")


class Crash(BaseException):
    """What a SIGKILL is, inside one process."""


@pytest.fixture(autouse=True)
def state_folder(tmp_path, monkeypatch):
    """Where the counts of this test's runs are."""
    monkeypatch.setenv("FEDMF_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def counts(state_folder):
    return [path.read_text() for path in state_folder.iterdir()]


def begin(directory, rounds=0):
    return begun(PLAN, directory / "checkpoint", rounds=rounds)


def end(checkpoint, state):
    """Run what is left and end the run, as a session does."""
    state = played(PLAN, state, checkpoint)
    checkpoint.forget_secrets()
    checkpoint.close()
    return state


def resume(checkpoint):
    """Continue a run in another process and finish it, without any override; return its last state."""
    checkpoint = replace(checkpoint)
    checkpoint.check_not_a_copy()
    state, _ = checkpoint.restore(PLAN, SGD)
    checkpoint.rebase(state)
    return end(checkpoint, state)


def crash_at(monkeypatch, after):
    """Crash before (odd) or after (even) a call of the system that writes; return the count of calls seen."""
    numbers, seen = itertools.count(1), []

    def counted(real):
        def call(*arguments, **options):
            number = next(numbers)
            seen.append(number)
            if 2 * number - 1 == after:
                raise Crash
            try:
                return real(*arguments, **options)
            finally:
                if 2 * number == after:
                    raise Crash

        return call

    for name in CALLS:
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    monkeypatch.setattr(record, "commit", counted(record.commit))  # of which SQLite writes
    return seen


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The last model of a run that nothing interrupts."""
    return end(*begin(tmp_path_factory.mktemp("straight"))).model


def test_killed_at_any_step_of_its_end_a_run_is_finished_by_a_resume(tmp_path, monkeypatch, straight):
    """From the release of the last round to the last file that is forgotten, before and after each system call."""
    for after in itertools.count(1):
        checkpoint, state = begin(tmp_path / str(after), 7)
        with monkeypatch.context() as patched:
            seen = crash_at(patched, after)
            try:
                played(PLAN, state, checkpoint)
                checkpoint.forget_secrets()
                break
            except Crash:
                pass
        np.testing.assert_array_equal(resume(checkpoint).model, straight)
        assert not [path.name for path in checkpoint.folder.iterdir() if path.name.startswith("sec")]
        assert resume(checkpoint).round == 8  # and once more
    assert 2 * len(seen) + 1 == after
    assert after > 20


def test_killed_at_any_step_of_its_beginning_a_run_that_released_nothing_can_begin(tmp_path, monkeypatch):
    for after in itertools.count(1, 3):  # before and after, in turn
        checkpoint, state = begin(tmp_path / str(after))
        with monkeypatch.context() as patched:
            crash_at(patched, after)
            try:
                checkpoint.begin(state)
                break
            except Crash:
                pass
        checkpoint.check_not_a_copy()
        checkpoint.begin(state)
        assert played(PLAN, state, checkpoint, 1).round == 1
    assert after > 20


@pytest.mark.parametrize("zeros", [False, True])
def test_a_run_without_secrets_is_finished_wherever_it_is(tmp_path, state_folder, straight, zeros):
    """Killed once its secrets were erased, or while they were, its count lost and its directory copied: it can release nothing."""
    checkpoint, _ = begin(tmp_path / "r", 8)
    if zeros:
        (checkpoint.folder / SECRETS).write_bytes(bytes(500))
    checkpoint.close()
    shutil.rmtree(state_folder)
    shutil.copytree(tmp_path / "r", tmp_path / "copy")
    for one in (checkpoint, replace(checkpoint, folder=tmp_path / "copy" / "checkpoint")):
        assert (one.folder / SECRETS).exists() == zeros
        np.testing.assert_array_equal(resume(one).model, straight)
        assert not (one.folder / SECRETS).exists()


def test_a_lost_database_is_an_older_state_and_not_a_new_run(tmp_path):
    checkpoint, state = begin(tmp_path / "r")
    checkpoint.check_not_a_copy()  # nothing was released
    played(PLAN, state, checkpoint, 1)
    checkpoint.close()
    checkpoint.record.path.unlink()
    with pytest.raises(RunDirectoryError, match="this is an older state: 1 of its rounds were released"):
        checkpoint.check_not_a_copy()


# the count


@pytest.mark.parametrize(
    ("module", "function", "released"), [(record, "commit", 4), (copies, "write_count", 5)]
)
def test_a_crash_before_the_commit_leaves_a_round_uncounted_and_one_after_it_leaves_it_released(
    tmp_path, monkeypatch, module, function, released
):
    checkpoint, state = begin(tmp_path / "r", 4)

    def crash(*_):
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(module, function, crash)
        with pytest.raises(Crash):
            played(PLAN, state, checkpoint)
    run = read_secrets(checkpoint.folder).origin.run
    assert copies.read_count(run) == 4
    checkpoint.check_not_a_copy()
    state, _ = checkpoint.restore(PLAN, SGD)
    assert state.round == released
    checkpoint.rebase(state)
    assert copies.read_count(run) == released
    assert end(checkpoint, state).round == 8


def test_a_run_whose_rounds_were_not_counted_from_its_beginning_is_counted_from_its_next_resume(
    tmp_path, monkeypatch, state_folder
):
    """A count that began in between would say nothing: its folder could not be written when the run began."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDMF_STATE", str(tmp_path / "file"))
    checkpoint, state = begin(tmp_path / "r")
    monkeypatch.setenv("FEDMF_STATE", str(state_folder))
    played(PLAN, state, checkpoint, 1)
    assert not state_folder.exists()
    checkpoint.rebase(checkpoint.restore(PLAN, SGD)[0])
    assert counts(state_folder) == ["1\n"]


def copied(checkpoint, directory):
    """Return a copy of a run that a person let continue."""
    checkpoint.close()
    shutil.copytree(checkpoint.folder.parent, directory)
    copy = replace(checkpoint, folder=directory / "checkpoint")
    kept = read_secrets(copy.folder)
    save_secrets(copy.folder, replace(kept, origin=replace(kept.origin, place=Place.of(directory))))
    return copy


def test_a_copy_does_not_release_the_last_round_again_once_the_run_is_over(tmp_path, state_folder):
    checkpoint, state = begin(tmp_path / "r", 7)
    copy = copied(checkpoint, tmp_path / "copy")
    end(checkpoint, state)
    assert counts(state_folder) == ["8\n"]
    with pytest.raises(RunDirectoryError, match=r"round 8 .* was released from another copy"):
        played(PLAN, state, copy)
    with pytest.raises(RunDirectoryError, match="older state: 8 of its rounds were released"):
        copy.check_not_a_copy()


def test_a_round_is_not_released_when_its_count_is_lost(tmp_path, state_folder):
    checkpoint, state = begin(tmp_path / "r", 4)
    checkpoint.close()
    shutil.rmtree(state_folder)
    before = {path: path.read_bytes() for path in checkpoint.folder.iterdir()}
    with pytest.raises(RunDirectoryError, match=r"no longer says how many rounds .* round 5 was not"):
        played(PLAN, state, checkpoint)
    assert {path: path.read_bytes() for path in checkpoint.folder.iterdir()} == before
    assert resume(replace(checkpoint, accept_copy=True)).round == 8


def _commit(folder, value, rounds, barrier, out):
    """Release `rounds` at the instants when the other process does."""
    checkpoint, released = Checkpoint(folder, {}), []
    for number in rounds:
        barrier.wait(300)
        try:
            checkpoint.commit(Release(number, np.full(15, value, "f4"), (str(number),)))
        except RunDirectoryError:
            continue
        released.append(number)
    out.put(released)


def test_two_copies_that_release_at_one_instant_release_each_round_once(tmp_path, state_folder):
    checkpoint, _ = begin(tmp_path / "a")
    copy = copied(checkpoint, tmp_path / "b")
    context = multiprocessing.get_context("fork")
    barrier, out = context.Barrier(2), context.Queue()
    both = [
        context.Process(target=_commit, args=(one.folder, value, range(1, 61), barrier, out))
        for value, one in enumerate((checkpoint, copy))
    ]
    for process in both:
        process.start()
    released = sorted(out.get(timeout=300) + out.get(timeout=300))
    for process in both:
        process.join()
    assert released == list(range(1, 61))
    assert counts(state_folder) == ["60\n"]


# another's directory


def test_a_directory_that_links_elsewhere_cannot_have_the_files_there_written(tmp_path):
    """The author of a run directory chooses no file of the person who resumes it."""
    checkpoint, state = begin(tmp_path / "r")
    own = tmp_path / "thesis.txt"
    own.write_text("years of work")
    checkpoint.close()
    for name in (SECRETS, f"{SECRETS}.new", "roster.json", *LINKED, f"{record.FILE}.new", "note.txt"):
        (checkpoint.folder / name).unlink(missing_ok=True)
        (checkpoint.folder / name).symlink_to(own)
    (checkpoint.folder / "mine.txt").write_text("kept")
    checkpoint.begin(state)
    assert own.read_text() == "years of work"
    assert (checkpoint.folder / "mine.txt").read_text() == "kept"
    for name in LINKED:
        checkpoint.close()
        path = checkpoint.folder / name
        path.unlink(missing_ok=True)
        path.symlink_to(own)
        for use in (checkpoint.record.released, lambda: played(PLAN, state, checkpoint)):
            with pytest.raises(RunDirectoryError, match=f"{name} is a link"):
                use()
        path.unlink()
    assert own.read_text() == "years of work"


NOT_OURS = {
    **{
        f"origin {number}": {"origin": origin}
        for number, origin in enumerate(
            ({"run": "/absolute"}, {"run": "../up"}, {"run": "A" * 32}, {"run": 5}, {"place": 3}, {"other": 1})
        )
    },
    **{f"about {text[:5]}": {"arrays": {"about": np.array(text)}} for text in ("no json", "[]", "3", "{}", "[" * 9999)},
    "no key": {"arrays": {"digest_key": None}},
    "zero key": {"arrays": {"key": np.zeros(32, "u1")}},
    "short key": {"arrays": {"digest_key": np.ones(3)}},
}  # fmt: skip


@pytest.mark.parametrize("what", NOT_OURS)
def test_secrets_that_this_program_would_not_have_written_are_none(tmp_path, what):
    checkpoint, _ = begin(tmp_path / "r", 2)
    change_secrets(checkpoint, **NOT_OURS[what])
    assert read_secrets(checkpoint.folder) is None
    with pytest.raises(RunDirectoryError, match=r"secrets\.npz is missing or damaged"):
        resume(checkpoint)


@pytest.mark.parametrize("run", ["{tmp}/keys", "../keys"])
def test_a_run_id_that_is_a_path_has_no_file_removed_or_written(tmp_path, run):
    checkpoint, state = begin(tmp_path / "r")
    (tmp_path / "keys").write_text("3\n")
    change_secrets(checkpoint, origin={"run": run.format(tmp=tmp_path)})
    checkpoint.begin(state)  # as where nothing was released
    checkpoint.forget_secrets()
    assert (tmp_path / "keys").read_text() == "3\n"
