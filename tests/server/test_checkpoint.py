import json
import os
import stat
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from checkpoints import SGD, advance, begun, same
from fedmf.errors import ParticipationError, ReleaseOrderError, RunDirectoryError
from plans import KEY, small_plan
from server import tables
from server.checkpoint import SECRETS
from server.origin import ORIGIN
from server.state import first_state


@pytest.mark.parametrize("every", [1, 3, 100])
def test_restored_anywhere_the_run_goes_on_bit_for_bit(tmp_path, every):
    plan = small_plan()
    straight = [first_state(plan, np.zeros(50, "f4"), KEY)]
    for _ in range(8):
        straight.append(advance(plan, straight[-1]))
    for cut in range(9):
        checkpoint, state = begun(plan, tmp_path / f"{every}-{cut}", every)
        for _ in range(cut):
            state = advance(plan, state, checkpoint)
        restored, replayed = checkpoint.restore(plan, SGD)
        same(restored, straight[cut])
        for then, release in replayed:
            same(then, straight[release.round])
        checkpoint.rebase(restored)
        while restored.round < 8:
            restored = advance(plan, restored, checkpoint)
        same(restored, straight[8])


@pytest.mark.parametrize("released", [0, 1])
def test_a_torn_record_does_not_hide_what_is_released_after_the_resume(tmp_path, released):
    plan = small_plan()
    checkpoint, state = begun(plan, tmp_path / "c", every=100)
    for _ in range(released):
        state = advance(plan, state, checkpoint)
    path = checkpoint.folder / "journal-000000.bin"
    whole = path.stat().st_size if released else 0
    advance(plan, state, checkpoint)
    os.truncate(path, whole + 200)
    restored, _ = checkpoint.restore(plan, SGD)
    assert restored.round == released
    checkpoint.rebase(restored)
    after = advance(plan, restored, checkpoint)
    again, _ = checkpoint.restore(plan, SGD)
    same(again, after)


def test_a_client_is_not_released_twice_in_an_epoch_after_a_resume(tmp_path):
    plan = small_plan()
    checkpoint, state = begun(plan, tmp_path / "c")
    advance(plan, state, checkpoint, ["a", "b"])
    restored, _ = checkpoint.restore(plan, SGD)
    with pytest.raises(ParticipationError, match="client b"):
        advance(plan, restored, checkpoint, ["c", "b"])


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from("abcdef"), max_size=3), st.sampled_from(["go on", "resume", "retry"])
        ),
        max_size=14,
    )
)
@example([([], "retry")] * 7)  # past the last of the 12 rounds
@settings(max_examples=80, deadline=None)
def test_no_history_releases_a_client_twice_in_an_epoch(history):
    """Rounds of any names, resumed after a crash or asked for again: what was released never holds a client twice."""
    plan = small_plan(dimension=3, epochs=3, rotation="identity")
    with tempfile.TemporaryDirectory() as folder:
        checkpoint, state = begun(plan, Path(folder) / "c")
        released = []
        for names, how in history:
            if how == "resume":
                state, _ = checkpoint.restore(plan, SGD)
                checkpoint.rebase(state)
            epoch = state.round // 4
            seen = {name for number, held in released if number // 4 == epoch for name in held}
            allowed = len(set(names)) == len(names) and not seen & set(names)
            for _ in range(2 if how == "retry" else 1):  # the second time the same clients, in the next round
                if state.round == plan.participation.rounds:
                    with pytest.raises(ReleaseOrderError, match="all 12 rounds"):
                        advance(plan, state, checkpoint, names)
                    break
                try:
                    after = advance(plan, state, checkpoint, names)
                except ParticipationError:
                    assert not allowed
                    break
                assert allowed
                released.append((state.round, names))
                allowed = not names or (state.round + 1) // 4 != epoch
                state = after
        for epoch in range(3):
            held = [name for number, names in released if number // 4 == epoch for name in names]
            assert len(held) == len(set(held))


def test_secrets_are_for_the_owner_only_and_gone_at_the_end(tmp_path):
    plan = small_plan()
    checkpoint, state = begun(plan, tmp_path / "c", every=1)
    keys = [KEY, KEY.ratchet()]
    for number in range(1, 9):
        state = advance(plan, state, checkpoint)
        path = checkpoint.folder / SECRETS
        if number < 8:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert keys[number // 4].reveal() in path.read_bytes()
            assert keys[1 - number // 4].reveal() not in path.read_bytes()
        else:
            assert not path.exists()
        for public in checkpoint.folder.iterdir():
            if public.name != SECRETS:
                assert not any(key.reveal() in public.read_bytes() for key in keys)


def test_an_epochs_key_is_overwritten_when_the_epoch_ends(tmp_path):
    plan = small_plan()
    checkpoint, state = begun(plan, tmp_path / "c", every=100)
    with (checkpoint.folder / SECRETS).open("rb") as old:
        for _ in range(4):
            state = advance(plan, state, checkpoint)
        left = old.read()
    assert left == bytes(len(left))
    assert left


def test_a_run_that_is_over_erases_a_half_written_secret_too(tmp_path):
    checkpoint, _ = begun(small_plan(), tmp_path / "c")
    aside = checkpoint.folder / f"{SECRETS}.new"
    aside.write_bytes(b"k" * 100)
    with aside.open("rb") as old:
        checkpoint.forget_secrets()
        assert old.read() == bytes(100)
    assert not list(checkpoint.folder.glob("secrets*"))


def test_a_damaged_origin_does_not_keep_the_secrets_of_a_run_that_is_over(tmp_path):
    checkpoint, _ = begun(small_plan(), tmp_path / "c")
    (checkpoint.folder / ORIGIN).write_text("{")
    checkpoint.forget_secrets()
    left = sorted(path.name for path in checkpoint.folder.iterdir())
    assert left == ["base-000000.npz", "register-000000.bin"]


def test_a_run_whose_rounds_were_not_counted_from_its_beginning_is_counted_from_its_next_resume(
    tmp_path, monkeypatch
):
    """A count that began in between would say nothing: its folder could not be written when the run began."""
    plan = small_plan()
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDMF_STATE", str(tmp_path / "file"))
    checkpoint, state = begun(plan, tmp_path / "c")
    monkeypatch.setenv("FEDMF_STATE", str(tmp_path / "state"))
    state = advance(plan, state, checkpoint)
    assert not (tmp_path / "state").exists()
    checkpoint.rebase(checkpoint.restore(plan, SGD)[0])
    (mark,) = (tmp_path / "state").iterdir()
    assert mark.read_text() == "1\n"


def test_a_run_that_begins_anew_keeps_nothing_of_the_one_before(tmp_path):
    checkpoint, state = begun(small_plan(), tmp_path / "c")
    for name in ("roster.json", "secrets.npz.new", "journal-000000.bin", "register-000007-1.bin"):
        (checkpoint.folder / name).write_bytes(b"old")
    checkpoint.begin(state)
    assert sorted(path.name for path in checkpoint.folder.iterdir()) == [
        "base-000000.npz", tables.FILE, ORIGIN, "register-000000.bin", SECRETS,
    ]  # fmt: skip


def test_secrets_ahead_of_the_journal_are_refused(tmp_path):
    plan = small_plan()
    checkpoint, state = begun(plan, tmp_path / "c", every=1)
    for _ in range(2):
        state = advance(plan, state, checkpoint)
    for path in (*checkpoint.folder.glob("journal-*"), checkpoint.folder / "base-000002.npz"):
        path.unlink()
    with pytest.raises(ReleaseOrderError, match="ahead of the 1 released"):
        checkpoint.restore(plan, SGD)


def damage(checkpoint, how):
    newest = sorted(checkpoint.folder.glob("base-*.npz"))[-1]
    data = newest.read_bytes()
    newest.write_bytes({"cut": data[:-100], "flipped": data[:90] + b"\xff" + data[91:], "empty": b""}[how])
    return newest


@pytest.mark.parametrize("how", ["cut", "flipped", "empty"])
def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_serves(tmp_path, how):
    plan = small_plan()
    checkpoint, state = begun(plan, tmp_path / "c")
    for _ in range(5):
        state = advance(plan, state, checkpoint)
    newest = damage(checkpoint, how)
    with pytest.raises(RunDirectoryError, match=r"damaged.*round 3 before it is kept"):
        checkpoint.restore(plan, SGD)
    newest.rename(newest.with_suffix(".damaged"))
    restored, _ = checkpoint.restore(plan, SGD)
    same(restored, state)


def test_another_version_is_refused_by_name_because_its_cohorts_may_be_others(tmp_path):
    checkpoint, _ = begun(small_plan(), tmp_path / "c")
    (path,) = checkpoint.folder.glob("base-*.npz")
    with np.load(path) as stored:
        arrays = dict(stored)
    about = json.loads(str(arrays["about"])) | {"format": "fedmf-checkpoint-3"}
    np.savez(path, **{**arrays, "about": np.array(json.dumps(about))})
    with pytest.raises(
        RunDirectoryError, match=r"'fedmf-checkpoint-3'; this version reads .* whose noise is of form 3"
    ):
        checkpoint.restore(small_plan(), SGD)


def test_lost_secrets_stop_the_run(tmp_path):
    plan = small_plan()
    checkpoint, state = begun(plan, tmp_path / "c")
    advance(plan, state, checkpoint)
    (checkpoint.folder / SECRETS).unlink()
    with pytest.raises(RunDirectoryError, match=r"secrets\.npz is missing or damaged"):
        checkpoint.restore(plan, SGD)


def test_a_run_that_released_nothing_may_begin_anew(tmp_path):
    plan = small_plan()
    checkpoint, state = begun(plan, tmp_path / "c")
    assert not checkpoint.has_released()
    advance(plan, state, checkpoint)
    assert checkpoint.has_released()


def test_a_run_that_its_budget_ended_is_restored_without_its_secrets(tmp_path):
    """They are forgotten with the last round that can follow; a crash may come before the run's last file."""
    limit = small_plan().spent(1).epsilon * 1.01
    plan = small_plan(max_epsilon=limit)
    checkpoint, state = begun(plan, tmp_path / "c")
    for _ in range(4):
        state = advance(plan, state, checkpoint)
    checkpoint.forget_secrets()
    restored, _ = checkpoint.restore(plan, SGD)
    same(restored, state)
    assert restored.secrets is None
    with pytest.raises(RunDirectoryError, match="missing or damaged"):  # where another epoch could follow
        checkpoint.restore(small_plan(), SGD)


@pytest.mark.parametrize("form", [None, 1, 2, 4])
def test_an_epoch_that_began_with_other_normals_is_refused_and_at_its_boundary_it_goes_on(tmp_path, form):
    """Rows drawn again in another form would be other noise than the releases hold; None: a version that named none."""
    plan = small_plan()
    for released in range(1, 8):
        checkpoint, state = begun(plan, tmp_path / str(released), every=3)
        for _ in range(released):
            state = advance(plan, state, checkpoint)
        path = checkpoint.folder / SECRETS
        with np.load(path) as stored:
            arrays = {name: stored[name] for name in stored.files if name != "normals"}
        np.savez(path, **arrays, **({} if form is None else {"normals": form}))
        before = {file.name: file.read_bytes() for file in checkpoint.folder.iterdir()}
        if released == 4:
            same(checkpoint.restore(plan, SGD)[0], state)
            continue
        with pytest.raises(RunDirectoryError, match=rf"epoch {released // 4 + 1} .* form {form or 1}, and"):
            checkpoint.restore(plan, SGD)
        assert {file.name: file.read_bytes() for file in checkpoint.folder.iterdir()} == before
