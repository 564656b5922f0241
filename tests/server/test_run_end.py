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
from server import journal, marks, origin
from server.checkpoint import SECRETS, Checkpoint
from server.optimizer import Sgd
from server.origin import ORIGIN, Place
from server.state import Release, apply_release, begin_epoch, first_state, make_release

SGD = Sgd(0.5, 0.9)
CALLS = ("open", "write", "fsync", "replace", "unlink", "ftruncate")


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
    """Go on with a run and finish it, as a session does without any override; return its last state."""
    checkpoint.refuse_copy()
    state, _ = checkpoint.restore(plan, SGD)
    checkpoint.rebase(state)
    state = play(plan, checkpoint, state)
    checkpoint.forget_secrets()
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
        assert not [path.name for path in checkpoint.folder.iterdir() if path.name.startswith(("sec", "ori"))]
        assert resume(plan, checkpoint).round == 8  # and once more
    assert 2 * len(seen) + 1 == after
    assert after > 60


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


def test_a_run_without_secrets_is_finished_wherever_it_is(tmp_path, monkeypatch, state_folder):
    """Killed before its origin was removed, its count lost and its directory copied: it can release nothing."""
    plan = small_plan()
    checkpoint, state = begin(plan, tmp_path / "r")
    straight = play(plan, checkpoint, state)

    def forget(_):
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(origin, "forget", forget)
        with pytest.raises(Crash):
            checkpoint.forget_secrets()
    shutil.rmtree(state_folder)
    shutil.copytree(tmp_path / "r", tmp_path / "copy")
    for one in (checkpoint, replace(checkpoint, folder=tmp_path / "copy" / "checkpoint")):
        assert (one.folder / ORIGIN).exists()
        np.testing.assert_array_equal(resume(plan, one).model, straight.model)
        assert not (one.folder / ORIGIN).exists()


def test_an_origin_of_zeros_is_an_erased_one(tmp_path):
    plan = small_plan()
    checkpoint, state = begin(plan, tmp_path / "r")
    path = checkpoint.folder / ORIGIN
    path.write_bytes(bytes(path.stat().st_size))
    checkpoint.refuse_copy()  # nothing was released: it may begin anew
    play(plan, *begin_again(checkpoint, state), until=2)
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(RunDirectoryError, match=r"origin\.json is missing"):
        resume(plan, checkpoint)


def test_the_secrets_go_before_what_tells_a_copy(tmp_path, monkeypatch):
    """Else a crash between leaves a key in a directory that no longer knows where it belongs."""
    plan = small_plan()
    checkpoint, state = begin(plan, tmp_path / "r")
    play(plan, checkpoint, state, until=5)
    gone = []
    monkeypatch.setattr(marks, "end", lambda _: gone.append((checkpoint.folder / SECRETS).exists()))
    checkpoint.forget_secrets()
    assert gone == [False]


def test_a_run_without_secrets_that_has_rounds_left_does_not_go_on(tmp_path):
    plan = small_plan()
    checkpoint, state = begin(plan, tmp_path / "r")
    play(plan, checkpoint, state, until=5)
    path = checkpoint.folder / SECRETS
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(RunDirectoryError, match=r"secrets\.npz is missing or damaged"):
        resume(plan, checkpoint)


def test_a_run_that_begins_again_ends_the_count_of_its_first_beginning(tmp_path, state_folder):
    plan = small_plan()
    checkpoint, state = begin(plan, tmp_path / "run")
    first = origin.load(checkpoint.folder).run
    checkpoint.begin(state)
    second = origin.load(checkpoint.folder).run
    assert second != first
    assert [(state_folder / run).read_text() for run in (first, second)] == ["0 over\n", "0\n"]


def test_a_crash_before_the_journal_is_written_leaves_the_round_uncounted(tmp_path, monkeypatch):
    plan = small_plan()
    checkpoint, state = begin(plan, tmp_path / "r")
    state = play(plan, checkpoint, state, until=4)

    def append(*_):
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(journal, "append", append)
        with pytest.raises(Crash):
            play(plan, checkpoint, state)
    assert marks.read(origin.load(checkpoint.folder).run) == 4
    assert resume(plan, checkpoint).round == 8


def copied(checkpoint, directory):
    """Return a copy of a run that a person let go on."""
    shutil.copytree(checkpoint.folder.parent, directory)
    copy = replace(checkpoint, folder=directory / "checkpoint")
    replace(origin.load(copy.folder), place=Place.of(directory)).save(copy.folder)
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
            checkpoint.commit(Release(number, np.full(15, value, "f4"), ("0",), 1))
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


def test_device_and_path_that_both_differ_are_a_copy():
    place = Place("machine", "/a", 1, 7)
    assert place.is_same(Place("machine", "/b", 1, 7))  # moved
    assert place.is_same(Place("machine", "/a", 2, 7))  # another number of the device after a reboot
    assert not place.is_same(Place("machine", "/b", 2, 7))
    assert not place.is_same(Place("machine", "/a", 1, 8))
    assert not place.is_same(Place("another", "/a", 1, 7))


def test_a_directory_that_links_elsewhere_cannot_have_the_files_there_written(tmp_path):
    """Whoever made a run directory chooses no file of the person who resumes it."""
    plan = small_plan()
    checkpoint, state = begin(plan, tmp_path / "r")
    own = tmp_path / "thesis.txt"
    own.write_text("years of work")
    for name in (
        SECRETS,
        f"{SECRETS}.new",
        ORIGIN,
        "roster.json",
        "journal-000000.bin.new",
        "base-000000.npz",
    ):
        (checkpoint.folder / name).unlink(missing_ok=True)
        (checkpoint.folder / name).symlink_to(own)
    (checkpoint.folder / "note.txt").symlink_to(own)
    (checkpoint.folder / "mine.txt").write_text("kept")
    checkpoint.begin(state)
    assert own.read_text() == "years of work"
    assert (checkpoint.folder / "mine.txt").read_text() == "kept"
    (checkpoint.folder / "journal-000000.bin").symlink_to(own)
    with pytest.raises(OSError, match="symbolic"):
        play(plan, checkpoint, state)
    assert own.read_text() == "years of work"


@pytest.mark.parametrize(
    "change",
    [
        {"run": "/absolute"},
        {"run": "../up"},
        {"run": "A" * 32},
        {"run": 5},
        {"marked": "no"},
        {"clients": "20"},
        {"clients": True},
        {"digest": None},
        {"key": "00" * 32},
        {"key": "11"},
        {"place": {"machine": "m", "path": "p", "device": "1", "inode": 1}},
        {"place": 3},
        {"other": 1},
    ],
)
def test_an_origin_that_this_program_would_not_have_written_is_refused(tmp_path, state_folder, change):
    plan = small_plan()
    checkpoint, state = begin(plan, tmp_path / "r")
    play(plan, checkpoint, state, until=2)
    path = checkpoint.folder / ORIGIN
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(RunDirectoryError, match=r"origin\.json is damaged"):
        checkpoint.refuse_copy()


@pytest.mark.parametrize("run", ["{tmp}/keys", "../keys"])
def test_a_run_id_that_is_a_path_has_no_file_removed_or_written(tmp_path, run):
    plan = small_plan()
    checkpoint, state = begin(plan, tmp_path / "r")
    own = Path(tmp_path / "keys")
    own.write_text("3\n")
    path = checkpoint.folder / ORIGIN
    path.write_text(json.dumps(json.loads(path.read_text()) | {"run": run.format(tmp=tmp_path)}))
    checkpoint.begin(state)  # as where nothing was released
    checkpoint.forget_secrets()
    assert own.read_text() == "3\n"
