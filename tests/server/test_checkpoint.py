import json
import stat
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from checkpoints import SGD, advance, begun, changed, killed, same
from fedmf.errors import ParticipationError, ReleaseOrderError, RunDirectoryError
from plans import KEY, small_plan
from server import record, secret
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


@pytest.mark.parametrize("released", [0, 1, 2])
def test_a_log_cut_anywhere_holds_the_rounds_whose_transactions_are_whole(tmp_path, released):
    """As a power failure leaves it: what was forced to disk is there, and of the last transaction any part."""
    plan = small_plan()
    checkpoint, state = begun(plan, tmp_path / "c", every=100)
    log = tmp_path / "c" / f"{record.FILE}-wal"
    for _ in range(released):
        state = advance(plan, state, checkpoint)
    whole = log.stat().st_size
    after = advance(plan, state, checkpoint)
    data = log.read_bytes()
    assert len(data) > whole
    for number, length in enumerate((whole, *range(whole + 1, len(data), 2021), len(data))):
        for garbled in {b"", b"x" * (len(data) - length)}:
            torn = killed(checkpoint, tmp_path / f"{number} {len(garbled)}")
            (torn.folder / log.name).write_bytes(data[:length] + garbled)
            restored, _ = torn.restore(plan, SGD)
            same(restored, after if length == len(data) else state)
            if garbled:
                torn.rebase(restored)
                following = advance(plan, restored, torn)
                same(torn.restore(plan, SGD)[0], following)
                torn.close()


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
        path = checkpoint.folder / secret.FILE
        if number < 8:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert keys[number // 4].reveal() in path.read_bytes()
            assert keys[1 - number // 4].reveal() not in path.read_bytes()
        else:
            assert not path.exists()
        for public in checkpoint.folder.iterdir():
            if public.name != secret.FILE:
                assert not any(key.reveal() in public.read_bytes() for key in keys)


def test_an_epochs_key_is_overwritten_when_the_epoch_ends(tmp_path):
    plan = small_plan()
    checkpoint, state = begun(plan, tmp_path / "c", every=100)
    with (checkpoint.folder / secret.FILE).open("rb") as old:
        for _ in range(4):
            state = advance(plan, state, checkpoint)
        left = old.read()
    assert left == bytes(len(left))
    assert left


def test_a_run_that_is_over_erases_a_half_written_secret_too(tmp_path):
    checkpoint, _ = begun(small_plan(), tmp_path / "c")
    aside = checkpoint.folder / f"{secret.FILE}.new"
    aside.write_bytes(b"k" * 100)
    with aside.open("rb") as old:
        checkpoint.forget_secrets()
        assert old.read() == bytes(100)
    assert not list(checkpoint.folder.glob("secrets*"))


def test_damaged_secrets_of_a_run_that_is_over_are_removed_too(tmp_path):
    checkpoint, _ = begun(small_plan(), tmp_path / "c")
    (checkpoint.folder / secret.FILE).write_text("{")
    checkpoint.forget_secrets()
    checkpoint.close()
    assert [path.name for path in checkpoint.folder.iterdir()] == [record.FILE]


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


def test_a_run_that_begins_again_keeps_nothing_of_the_one_before(tmp_path):
    checkpoint, state = begun(small_plan(), tmp_path / "c")
    checkpoint.close()
    for name in ("roster.json", "secrets.npz.new", "run.sqlite-wal", "run.sqlite-shm", "run.sqlite.new"):
        (checkpoint.folder / name).write_bytes(b"old")
    checkpoint.begin(state)
    checkpoint.close()
    assert sorted(path.name for path in checkpoint.folder.iterdir()) == [record.FILE, secret.FILE]


def test_secrets_ahead_of_the_record_are_refused(tmp_path):
    plan = small_plan()
    checkpoint, state = begun(plan, tmp_path / "c", every=1)
    state = advance(plan, state, checkpoint)
    older = killed(checkpoint, tmp_path / "older")
    advance(plan, state, checkpoint)
    (older.folder / secret.FILE).write_bytes((checkpoint.folder / secret.FILE).read_bytes())
    with pytest.raises(ReleaseOrderError, match="ahead of the 1 released"):
        older.restore(plan, SGD)


def test_a_damaged_state_is_refused_and_the_one_before_it_serves(tmp_path):
    plan = small_plan()
    checkpoint, state = begun(plan, tmp_path / "c")
    for _ in range(5):
        state = advance(plan, state, checkpoint)
    checkpoint.close()
    changed(checkpoint.folder, "UPDATE base SET document = replace(document, 'seed', 'sead') WHERE round = 4")
    with pytest.raises(RunDirectoryError, match=r"run\.sqlite is damaged.*round 4 .* round 3 is used once"):
        checkpoint.restore(plan, SGD)
    changed(checkpoint.folder, "DELETE FROM base WHERE round = 4")
    same(checkpoint.restore(plan, SGD)[0], state)


@pytest.mark.parametrize(
    ("statement", "match"),
    [
        ("PRAGMA user_version = 7", "format of .* is 7; this version reads 6, whose noise is of form 3"),
        ("PRAGMA application_id = 1", "no database of a run"),
        ("CREATE VIEW mine AS SELECT 1", "no database of a run"),
        ("CREATE TRIGGER mine AFTER INSERT ON heard BEGIN SELECT 1; END", "no database of a run"),
        ("UPDATE release SET epoch = 1 WHERE round = 2", "round 2 is not as it was released"),
        ("UPDATE release SET cohort_size = 9 WHERE round = 2", "round 2 is not as it was released"),
        ("UPDATE heard SET client = 'x' WHERE place = 1 AND round = 2", "round 2 is not as it was released"),
        ("UPDATE heard SET place = 9 WHERE place = 0 AND round = 2", "round 2 is not as it was released"),
        ("UPDATE heard SET epoch = 1 WHERE round = 2", "round 2 is not as it was released"),
        ("DELETE FROM heard WHERE place = 2 AND round = 1", "round 1 is not as it was released"),
        ("INSERT INTO heard VALUES ('x', 0, 9, 0)", "a round is missing"),
        ("UPDATE base SET round = 5 WHERE round = 3", "a round is missing"),
        ("DELETE FROM release WHERE round = 1", "round 1 is not as it was released"),
        ("UPDATE blob SET digest = x'00' WHERE owner = 'sum'", "sum 4 is not as it was written"),
        ("DELETE FROM blob WHERE owner = 'sum' AND round = 4", "sum of round 4 is not as it was released"),
        ("DELETE FROM blob WHERE owner = 'base'", "state of round 3 is not as it was saved"),
        ("UPDATE base SET document = '[]' WHERE round = 3", "state of round 3 is not as it was saved"),
    ],
)  # fmt: skip
def test_a_record_that_no_run_wrote_is_refused(tmp_path, statement, match):
    plan = small_plan(clients=18, rounds_per_epoch=6)
    checkpoint, state = begun(plan, tmp_path / "c")
    for _ in range(4):
        state = advance(plan, state, checkpoint)
    checkpoint.close()
    changed(checkpoint.folder, statement)
    with pytest.raises(RunDirectoryError, match=match):
        checkpoint.restore(plan, SGD)


def test_a_checkpoint_of_files_is_refused_by_its_format(tmp_path):
    checkpoint, _ = begun(small_plan(), tmp_path / "c")
    (checkpoint.folder / record.FILE).unlink()
    (checkpoint.folder / "base-000000.npz").touch()
    again = record.Record(checkpoint.folder)
    with pytest.raises(RunDirectoryError, match=r"format 5 or older, .* this version reads format 6"):
        again.bases()


def test_lost_secrets_stop_the_run(tmp_path):
    plan = small_plan()
    checkpoint, state = begun(plan, tmp_path / "c")
    advance(plan, state, checkpoint)
    (checkpoint.folder / secret.FILE).unlink()
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


@pytest.mark.parametrize("form", [1, 2, 4])
def test_an_epoch_that_began_with_other_normals_is_refused_and_at_its_boundary_it_goes_on(tmp_path, form):
    """Rows drawn again in another form would be other noise than the releases hold."""
    plan = small_plan()
    for released in range(1, 8):
        checkpoint, state = begun(plan, tmp_path / str(released), every=3)
        for _ in range(released):
            state = advance(plan, state, checkpoint)
        checkpoint.close()
        path = checkpoint.folder / secret.FILE
        with np.load(path) as stored:
            arrays = dict(stored)
        about = json.loads(str(arrays["about"])) | {"normals": form}
        np.savez(path, **arrays | {"about": np.array(json.dumps(about))})
        before = {file.name: file.read_bytes() for file in checkpoint.folder.iterdir()}
        if released == 4:
            same(checkpoint.restore(plan, SGD)[0], state)
            continue
        with pytest.raises(RunDirectoryError, match=rf"epoch {released // 4 + 1} .* form {form}, and"):
            checkpoint.restore(plan, SGD)
        assert {file.name: file.read_bytes() for file in checkpoint.folder.iterdir()} == before


def test_a_lost_database_is_an_older_state_and_not_a_new_run(tmp_path):
    plan = small_plan()
    checkpoint, state = begun(plan, tmp_path / "c")
    checkpoint.refuse_copy()  # nothing was released
    advance(plan, state, checkpoint)
    checkpoint.close()
    checkpoint.record.path.unlink()
    with pytest.raises(RunDirectoryError, match="this is an older state: 1 of its rounds were released"):
        checkpoint.refuse_copy()
