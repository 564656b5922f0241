"""A run that is over stays over, and can be finished, whatever the instant of a crash at its end."""

import itertools
import json
import multiprocessing
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedmf.errors import RunDirectoryError
from plans import KEY, random_vector, small_plan
from server import checkpoint as module, copies, record, secret
from server.checkpoint import Checkpoint
from server.copies import Place
from server.optimizer import Sgd
from server.state import Release, apply_release, begin_epoch, first_state, make_release

SGD = Sgd(0.5, 0.9)
LINKED = tuple(f"{record.FILE}{end}" for end in ("-wal", "-shm", ""))
CALLS = ("open", "write", "pwrite", "fsync", "replace", "unlink", "ftruncate")


class Crash(BaseException):
    """What a SIGKILL is, inside one process."""


@pytest.fixture(autouse=True)
def state_folder(tmp_path, monkeypatch):
    """Where the marks of this test's runs lie."""
    monkeypatch.setenv("FEDMF_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def begin(plan, directory):
    folder = directory / "checkpoint"
    folder.mkdir(parents=True)
    checkpoint = Checkpoint(folder, {}, plan.factorization.epochs, 3)
    state = first_state(plan, np.zeros(plan.dimension, "f4"), KEY)
    checkpoint.begin(state)
    return checkpoint, state


def begin_again(checkpoint, state):
    checkpoint.begin(state)
    return checkpoint, state


def play(plan, checkpoint, state, until=8):
    """Release the rounds up to `until`, as the strategy and its callbacks do."""
    while state.round < until:
        state = begin_epoch(plan, state)
        vector = random_vector(plan.rotation.padded, 1.0, state.round)
        made, secrets = make_release(plan, state, vector, [f"{state.position(plan)[1]}"])
        state = apply_release(plan, SGD, state, made, secrets)
        checkpoint.commit(made)
        checkpoint.settle(plan, state)
    return state


def resume(plan, checkpoint):
    """Continue a run in another process and finish it, as a session does without any override; return its last state."""
    checkpoint = replace(checkpoint)
    checkpoint.refuse_copy()
    state, _ = checkpoint.restore(plan, SGD)
    checkpoint.rebase(state)
    state = play(plan, checkpoint, state)
    checkpoint.forget_secrets()
    checkpoint.close()
    return state


def crash_at(monkeypatch, after):
    """Crash before (odd) or after (even) a call of the system that writes; return the count of calls seen."""
    calls = itertools.count(1)
    seen = []

    def counted(real):
        def call(*arguments, **options):
            number = next(calls)
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


def test_killed_at_any_step_of_its_end_a_run_is_finished_by_a_resume(tmp_path, monkeypatch):
    """From the release of the last round to the last file that is forgotten, before and after each system call."""
    plan = small_plan()
    checkpoint, state = begin(plan, tmp_path / "straight")
    straight = play(plan, checkpoint, state)
    checkpoint.forget_secrets()
    for after in itertools.count(1):
        checkpoint, state = begin(plan, tmp_path / str(after))
        state = play(plan, checkpoint, state, until=7)
        with monkeypatch.context() as patched:
            seen = crash_at(patched, after)
            try:
                play(plan, checkpoint, state)
                checkpoint.forget_secrets()
                break
            except Crash:
                pass
        ended = resume(plan, checkpoint)
        np.testing.assert_array_equal(ended.model, straight.model)
        assert not [path.name for path in checkpoint.folder.iterdir() if path.name.startswith("sec")]
        assert resume(plan, checkpoint).round == 8  # and once more
    assert 2 * len(seen) + 1 == after
    assert after > 40


def test_killed_at_any_step_of_beginning_anew_a_run_that_released_nothing_can_begin(tmp_path, monkeypatch):
    plan = small_plan()
    for after in itertools.count(1, 3):  # before and after, in turn
        checkpoint, state = begin(plan, tmp_path / str(after))
        with monkeypatch.context() as patched:
            crash_at(patched, after)
            try:
                checkpoint.begin(state)
                break
            except Crash:
                pass
        checkpoint.refuse_copy()
        checkpoint.begin(state)
        assert play(plan, checkpoint, state, until=1).round == 1
    assert after > 40


@pytest.mark.parametrize("zeros", [False, True])
def test_a_run_without_secrets_is_finished_wherever_it_is(tmp_path, monkeypatch, state_folder, zeros):
    """Killed once its secrets were erased, or while they were, its count lost and its directory copied: it can release nothing."""
    plan = small_plan()
    checkpoint, state = begin(plan, tmp_path / "r")
    straight = play(plan, checkpoint, state)
    if zeros:
        (checkpoint.folder / secret.FILE).write_bytes(bytes(500))
    checkpoint.close()
    shutil.rmtree(state_folder)
    shutil.copytree(tmp_path / "r", tmp_path / "copy")
    for one in (checkpoint, replace(checkpoint, folder=tmp_path / "copy" / "checkpoint")):
        assert (one.folder / secret.FILE).exists() == zeros
        np.testing.assert_array_equal(resume(plan, one).model, straight.model)
        assert not (one.folder / secret.FILE).exists()


def test_the_key_goes_before_the_count_ends(tmp_path, monkeypatch):
    """A crash between leaves a run that is over."""
    plan = small_plan()
    checkpoint, state = begin(plan, tmp_path / "r")
    play(plan, checkpoint, state, until=5)
    gone = []
    monkeypatch.setattr(
        module, "end_count", lambda _: gone.append((checkpoint.folder / secret.FILE).exists())
    )
    checkpoint.forget_secrets()
    assert gone == [False]


def test_a_run_without_secrets_that_has_rounds_left_does_not_go_on(tmp_path):
    plan = small_plan()
    checkpoint, state = begin(plan, tmp_path / "r")
    play(plan, checkpoint, state, until=5)
    path = checkpoint.folder / secret.FILE
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(RunDirectoryError, match=r"secrets\.npz is missing or damaged"):
        resume(plan, checkpoint)


def test_a_run_that_begins_again_ends_the_count_of_its_first_beginning(tmp_path, state_folder):
    plan = small_plan()
    checkpoint, state = begin(plan, tmp_path / "run")
    first = secret.read(checkpoint.folder).origin.run
    checkpoint.begin(state)
    second = secret.read(checkpoint.folder).origin.run
    assert second != first
    assert [(state_folder / run).read_text() for run in (first, second)] == ["0 over\n", "0\n"]


def crashed(monkeypatch, tmp_path, module, function):
    """A plan and the checkpoint of its run, which crashed in round 5 where `module` calls its `function`."""
    plan = small_plan()
    checkpoint, state = begin(plan, tmp_path / "r")
    state = play(plan, checkpoint, state, until=4)

    def crash(*_):
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(module, function, crash)
        with pytest.raises(Crash):
            play(plan, checkpoint, state)
    return plan, checkpoint


def test_a_crash_before_the_commit_leaves_the_round_uncounted(tmp_path, monkeypatch):
    plan, checkpoint = crashed(monkeypatch, tmp_path, record, "commit")
    assert copies.read_count(secret.read(checkpoint.folder).origin.run) == 4
    assert resume(plan, checkpoint).round == 8


def test_a_crash_between_the_commit_and_the_count_leaves_the_round_released(tmp_path, monkeypatch):
    plan, checkpoint = crashed(monkeypatch, tmp_path, copies, "write_count")
    run = secret.read(checkpoint.folder).origin.run
    assert copies.read_count(run) == 4
    checkpoint.refuse_copy()
    state, _ = checkpoint.restore(plan, SGD)
    assert state.round == 5
    checkpoint.rebase(state)
    assert copies.read_count(run) == 5


def copied(checkpoint, directory):
    """Return a copy of a run that a person let go on."""
    checkpoint.close()
    shutil.copytree(checkpoint.folder.parent, directory)
    copy = replace(checkpoint, folder=directory / "checkpoint")
    kept = secret.read(copy.folder)
    origin = replace(kept.origin, place=Place.of(directory))
    secret.save(copy.folder, kept.secrets, kept.mechanism, origin)
    return copy


def test_a_copy_does_not_release_the_last_round_again_once_the_run_is_over(tmp_path, state_folder):
    plan = small_plan()
    checkpoint, state = begin(plan, tmp_path / "r")
    state = play(plan, checkpoint, state, until=7)
    copy = copied(checkpoint, tmp_path / "copy")
    play(plan, checkpoint, state)
    checkpoint.forget_secrets()
    assert [path.read_text() for path in state_folder.iterdir()] == ["8 over\n"]
    with pytest.raises(RunDirectoryError, match=r"round 8 .* was released from another copy"):
        play(plan, copy, state)
    with pytest.raises(RunDirectoryError, match="older state: 8 of its rounds were released"):
        copy.refuse_copy()


def test_a_round_is_not_released_when_its_mark_is_lost(tmp_path, state_folder):
    plan = small_plan()
    checkpoint, state = begin(plan, tmp_path / "r")
    state = play(plan, checkpoint, state, until=4)
    checkpoint.close()
    shutil.rmtree(state_folder)
    before = {path: path.read_bytes() for path in checkpoint.folder.iterdir()}
    with pytest.raises(RunDirectoryError, match=r"no longer says how many rounds .* round 5 was not"):
        play(plan, checkpoint, state)
    assert {path: path.read_bytes() for path in checkpoint.folder.iterdir()} == before
    letting = replace(checkpoint, accept_copy=True)
    assert resume(plan, letting).round == 8


def _commit(folder, value, rounds, barrier, out):
    """Release `rounds` at the instants when the other process does."""
    checkpoint, released = Checkpoint(folder, {}), []
    for number in rounds:
        barrier.wait(60)
        try:
            checkpoint.commit(Release(number, np.full(15, value, "f4"), (str(number),), 1))
        except RunDirectoryError:
            continue
        released.append(number)
    out.put(released)


def test_two_copies_that_release_at_one_instant_release_each_round_once(tmp_path, state_folder):
    checkpoint, _ = begin(small_plan(), tmp_path / "a")
    copy = copied(checkpoint, tmp_path / "b")
    context = multiprocessing.get_context("fork")
    barrier, out = context.Barrier(2), context.Queue()
    both = [
        context.Process(target=_commit, args=(one.folder, value, range(1, 61), barrier, out))
        for value, one in enumerate((checkpoint, copy))
    ]
    for process in both:
        process.start()
    released = sorted(out.get(timeout=120) + out.get(timeout=120))
    for process in both:
        process.join()
    assert released == list(range(1, 61))
    assert [path.read_text() for path in state_folder.iterdir()] == ["60\n"]


def test_a_directory_that_links_elsewhere_cannot_have_the_files_there_written(tmp_path):
    """Whoever made a run directory chooses no file of the person who resumes it."""
    plan = small_plan()
    checkpoint, state = begin(plan, tmp_path / "r")
    own = tmp_path / "thesis.txt"
    own.write_text("years of work")
    checkpoint.close()
    for name in (secret.FILE, f"{secret.FILE}.new", "roster.json", *LINKED, f"{record.FILE}.new"):
        (checkpoint.folder / name).unlink(missing_ok=True)
        (checkpoint.folder / name).symlink_to(own)
    (checkpoint.folder / "note.txt").symlink_to(own)
    (checkpoint.folder / "mine.txt").write_text("kept")
    checkpoint.begin(state)
    assert own.read_text() == "years of work"
    assert (checkpoint.folder / "mine.txt").read_text() == "kept"
    for name in LINKED:
        checkpoint.close()
        path = checkpoint.folder / name
        path.unlink(missing_ok=True)
        path.symlink_to(own)
        for use in (checkpoint.has_released, lambda: play(plan, checkpoint, state)):
            with pytest.raises(RunDirectoryError, match=f"{name} is a link"):
                use()
        path.unlink()
    assert own.read_text() == "years of work"


@pytest.mark.parametrize(
    "change",
    [
        {"run": "/absolute"},
        {"run": "../up"},
        {"run": "A" * 32},
        {"run": 5},
        {"is_counted": "no"},
        {"clients": "20"},
        {"clients": True},
        {"digest": None},
        {"place": {"machine": "m", "path": "p", "device": "1", "inode": 1}},
        {"place": 3},
        {"other": 1},
    ],
)
def test_secrets_that_this_program_would_not_have_written_are_refused(tmp_path, change):
    plan = small_plan()
    checkpoint, state = begin(plan, tmp_path / "r")
    play(plan, checkpoint, state, until=2)
    with_origin(checkpoint, change)
    assert secret.read(checkpoint.folder) is None
    with pytest.raises(RunDirectoryError, match=r"secrets\.npz is missing or damaged"):
        resume(plan, replace(checkpoint))


@pytest.mark.parametrize("run", ["{tmp}/keys", "../keys"])
def test_a_run_id_that_is_a_path_has_no_file_removed_or_written(tmp_path, run):
    plan = small_plan()
    checkpoint, state = begin(plan, tmp_path / "r")
    own = Path(tmp_path / "keys")
    own.write_text("3\n")
    with_origin(checkpoint, {"run": run.format(tmp=tmp_path)})
    checkpoint.begin(state)  # as where nothing was released
    checkpoint.forget_secrets()
    assert own.read_text() == "3\n"


def with_origin(checkpoint, change):
    """Change what the secret file has of the run's origin."""
    path = checkpoint.folder / secret.FILE
    with np.load(path) as stored:
        arrays = dict(stored)
    about = json.loads(str(arrays["about"]))
    about["origin"] |= change
    np.savez(path, **arrays | {"about": np.array(json.dumps(about))})


@pytest.mark.parametrize(
    "spoil", ["no json", "[]", "3", "no origin", "no key", "zero key", "short key", "[" * 9999]
)
def test_damaged_secrets_are_none(tmp_path, spoil):
    checkpoint, _ = begin(small_plan(), tmp_path / "r")
    path = checkpoint.folder / secret.FILE
    with np.load(path) as stored:
        arrays = dict(stored)
    changed = {
        "no origin": {"about": np.array("{}")},
        "zero key": {"key": np.zeros(32, "u1")},
        "short key": {"digest_key": np.ones(3)},
    }
    if spoil == "no key":
        del arrays["digest_key"]
    np.savez(path, **arrays | changed.get(spoil, {"about": np.array(spoil)} if spoil != "no key" else {}))
    assert secret.read(checkpoint.folder) is None
