"""A checkpoint continues a run bit for bit from any instant, and refuses what is not the run that began."""

import hashlib
import stat
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from fedmf.errors import ParticipationError, ReleaseOrderError, RunDirectoryError
from fedmf.mechanisms import design, design_run, prefix_sum
from fedmf.mechanisms.run_factorization import RunFactorization
from kills import kill
from plans import (
    KEY,
    SETTINGS,
    SGD,
    advance,
    begun,
    change_secrets,
    changed,
    killed,
    played,
    same,
    small_plan,
)
from server import record
from server.checkpoint import NOISE_MULTIPLIER, Checkpoint
from server.copies import SECRETS, Clients
from server.optimizer import Adam
from server.state import first_state

PLAN = small_plan()  # 2 epochs of 4 rounds


@pytest.fixture(scope="module")
def straight():
    """The states of a run that nothing interrupts."""
    states = [first_state(PLAN, np.zeros(50, "f4"), KEY)]
    for _ in range(8):
        states.append(advance(PLAN, states[-1]))
    return states


# continuing


@pytest.mark.parametrize("every", [1, 3, 100])
def test_restored_anywhere_the_run_continues_bit_for_bit(tmp_path, every, straight):
    for cut in range(9):
        checkpoint, _ = begun(PLAN, tmp_path / f"{every}-{cut}", every, cut)
        restored, replayed = checkpoint.restore(PLAN, SGD)
        same(restored, straight[cut])
        for then, release in replayed:
            same(then, straight[release.round])
        checkpoint.rebase(restored)
        same(played(PLAN, restored, checkpoint), straight[8])


@pytest.mark.parametrize("released", [0, 1, 2])
def test_a_log_cut_anywhere_holds_the_rounds_whose_transactions_are_whole(tmp_path, released):
    """As a power failure leaves it: what was forced to disk is there, and of the last transaction any part."""
    checkpoint, state = begun(PLAN, tmp_path / "c", 100, released)
    log = tmp_path / "c" / f"{record.FILE}-wal"
    whole = log.stat().st_size
    after = advance(PLAN, state, checkpoint)
    data = log.read_bytes()
    assert len(data) > whole
    for number, length in enumerate((whole, *range(whole + 1, len(data), 2021), len(data))):
        for garbled in {b"", b"x" * (len(data) - length)}:
            torn = killed(checkpoint, tmp_path / f"{number} {len(garbled)}")
            (torn.folder / log.name).write_bytes(data[:length] + garbled)
            restored, _ = torn.restore(PLAN, SGD)
            same(restored, after if length == len(data) else state)
            if garbled:
                torn.rebase(restored)
                following = advance(PLAN, restored, torn)
                same(torn.restore(PLAN, SGD)[0], following)
                torn.close()


@pytest.mark.slow
def test_killed_at_random_instants_a_run_loses_no_round_and_releases_none_twice(tmp_path):
    """See `kills`, which has more kills than a test has time for."""
    wrong, rounds = kill(tmp_path, 60, 1)
    assert wrong == [set(), set(), set()]
    assert rounds > 6


@given(st.lists(st.tuples(st.lists(st.sampled_from("abcdef"), max_size=3), st.booleans()), max_size=14))
@example([([], False)] * 13)  # past the last of the 12 rounds
@example([(["a", "b"], False), (["a", "b"], False), (["c", "b"], True)])
@settings(max_examples=80)
def test_no_history_releases_a_client_twice_in_an_epoch(history):
    """Rounds of any names, some after a crash and a resume: a round is released unless it has a client again."""
    plan = small_plan(dimension=3, epochs=3, rotation="identity")
    with tempfile.TemporaryDirectory() as folder:
        checkpoint, state = begun(plan, Path(folder) / "c")
        released = set()
        for names, is_resumed in history:
            if is_resumed:
                state, _ = checkpoint.restore(plan, SGD)
                checkpoint.rebase(state)
            held = [(state.round // 4, name) for name in names]
            is_allowed = len(released.union(held)) == len(released) + len(held) and state.round < 12
            try:
                state = advance(plan, state, checkpoint, names)
            except (ParticipationError, ReleaseOrderError):
                assert not is_allowed
            else:
                assert is_allowed
                released.update(held)


# keys


def test_secrets_are_for_the_owner_only_and_gone_at_the_end(tmp_path):
    checkpoint, state = begun(PLAN, tmp_path / "c", every=1)
    keys, path = [KEY, KEY.ratchet()], checkpoint.folder / SECRETS
    for number in range(1, 9):
        state = advance(PLAN, state, checkpoint)
        assert path.exists() == (number < 8)
        if number < 8:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert keys[number // 4].reveal() in path.read_bytes()
            assert keys[1 - number // 4].reveal() not in path.read_bytes()
        for public in checkpoint.folder.iterdir():
            if public != path:
                assert not any(key.reveal() in public.read_bytes() for key in keys)


def test_an_epochs_key_is_overwritten_when_the_epoch_ends(tmp_path):
    checkpoint, state = begun(PLAN, tmp_path / "c", every=100)
    with (checkpoint.folder / SECRETS).open("rb") as old:
        played(PLAN, state, checkpoint, 4)
        left = old.read()
    assert left == bytes(len(left))
    assert left


def test_a_run_that_is_over_erases_half_written_and_damaged_secrets_too(tmp_path):
    checkpoint, _ = begun(PLAN, tmp_path / "c")
    aside = checkpoint.folder / f"{SECRETS}.new"
    aside.write_bytes(b"k" * 100)
    (checkpoint.folder / SECRETS).write_text("{")
    with aside.open("rb") as old:
        checkpoint.forget_secrets()
        assert old.read() == bytes(100)
    checkpoint.close()
    assert [path.name for path in checkpoint.folder.iterdir()] == [record.FILE]


def test_a_run_that_begins_again_keeps_nothing_of_the_one_before(tmp_path):
    checkpoint, state = begun(PLAN, tmp_path / "c")
    assert not checkpoint.record.released()
    checkpoint.close()
    for name in ("roster.json", "secrets.npz.new", "run.sqlite-wal", "run.sqlite-shm", "run.sqlite.new"):
        (checkpoint.folder / name).write_bytes(b"old")
    checkpoint.begin(state)
    checkpoint.close()
    assert sorted(path.name for path in checkpoint.folder.iterdir()) == [record.FILE, SECRETS]
    advance(PLAN, state, checkpoint)
    assert checkpoint.record.released()


def test_secrets_that_are_lost_or_ahead_of_the_record_stop_the_run(tmp_path):
    checkpoint, state = begun(PLAN, tmp_path / "c", every=1, rounds=1)
    older = killed(checkpoint, tmp_path / "older")
    advance(PLAN, state, checkpoint)
    (older.folder / SECRETS).write_bytes((checkpoint.folder / SECRETS).read_bytes())
    with pytest.raises(ReleaseOrderError, match="ahead of the 1 released"):
        older.restore(PLAN, SGD)
    for spoil in (lambda path: path.write_bytes(bytes(path.stat().st_size)), lambda path: path.unlink()):
        spoil(checkpoint.folder / SECRETS)
        with pytest.raises(RunDirectoryError, match=r"secrets\.npz is missing or damaged"):
            checkpoint.restore(PLAN, SGD)


def test_a_resume_with_other_clients_is_an_error(tmp_path):
    checkpoint, _ = begun(PLAN, tmp_path / "c", rounds=1)
    with pytest.raises(RunDirectoryError, match="began with 0 clients, and the data now hold 5"):
        replace(killed(checkpoint, tmp_path / "other"), clients=Clients(5)).restore(PLAN, SGD)


def test_a_run_that_its_budget_ended_is_restored_without_its_secrets(tmp_path):
    """They are forgotten with the last round that can follow; a crash may come before the run's last file."""
    plan = small_plan(max_epsilon=PLAN.spent(1).epsilon * 1.01)
    checkpoint, state = begun(plan, tmp_path / "c", rounds=4)
    checkpoint.forget_secrets()
    restored, _ = checkpoint.restore(plan, SGD)
    same(restored, state)
    assert restored.secrets is None
    with pytest.raises(RunDirectoryError, match="missing or damaged"):  # where another epoch could follow
        checkpoint.restore(PLAN, SGD)


def test_a_run_that_diverged_is_restored_without_its_secrets(tmp_path):
    checkpoint, state = begun(PLAN, tmp_path / "c", rounds=2)
    checkpoint.rebase(replace(state, model=np.full(50, np.nan, "f4")))
    checkpoint.forget_secrets()
    restored, _ = checkpoint.restore(PLAN, SGD)
    assert restored.round == 2
    assert restored.secrets is None


# what is not the run that began


@pytest.mark.parametrize(
    ("statement", "match"),
    [
        ("PRAGMA user_version = 6", "format of .* is 6; this version reads 8, whose noise is of form 3"),
        ("PRAGMA application_id = 1", "no database of a run"),
        ("CREATE VIEW mine AS SELECT 1", "no database of a run"),
        ("CREATE TRIGGER mine AFTER INSERT ON heard BEGIN SELECT 1; END", "no database of a run"),
        ("UPDATE release SET epoch = 1 WHERE round = 2", "round 2 is not as it was released"),
        ("UPDATE heard SET client = 'x' WHERE place = 1 AND round = 2", "round 2 is not as it was released"),
        ("UPDATE heard SET place = 9 WHERE place = 0 AND round = 2", "round 2 is not as it was released"),
        ("UPDATE heard SET epoch = 1 WHERE round = 2", "round 2 is not as it was released"),
        ("DELETE FROM heard WHERE place = 2 AND round = 1", "round 1 is not as it was released"),
        ("INSERT INTO heard VALUES ('x', 0, 9, 0)", "a round is missing"),
        ("UPDATE base SET round = 5 WHERE round = 3", "a round is missing"),
        ("DELETE FROM release WHERE round = 1", "round 1 is not as it was released"),
        ("UPDATE blob SET bytes = x'00' WHERE owner = 'sum'", "sum of round 4 is not as it was written"),
        ("DELETE FROM blob WHERE owner = 'base'", "base of round 3 is not as it was written"),
        ("UPDATE base SET document = replace(document, 'seed', 'sead')", "base of round 3 is not as it was written"),
    ],
)  # fmt: skip
def test_a_record_that_no_run_wrote_is_refused(tmp_path, statement, match):
    plan = small_plan(clients=18, rounds_per_epoch=6)
    checkpoint, _ = begun(plan, tmp_path / "c", rounds=4)
    checkpoint.close()
    changed(checkpoint.folder, statement)
    with pytest.raises(RunDirectoryError, match=match):
        checkpoint.restore(plan, SGD)


@pytest.mark.parametrize("calculated", ["x", [1], {}, 10**400], ids=["text", "list", "mapping", "huge"])
def test_values_of_another_type_under_a_right_digest_are_damage(tmp_path, calculated):
    checkpoint, _ = begun(PLAN, tmp_path / "c")
    about = {"configuration": SETTINGS, "calculated": {NOISE_MULTIPLIER: calculated}, "code": {}}
    checkpoint.record.save(first_state(PLAN, np.zeros(50, "f4"), KEY), about)
    for act in (lambda: checkpoint.with_kept_noise(PLAN), lambda: checkpoint.restore(PLAN, SGD)):
        with pytest.raises(RunDirectoryError, match=r"run.sqlite is damaged \(.*float"):
            act()


def test_a_base_that_is_a_list_is_damage_to_an_extension_too(tmp_path):
    checkpoint, _ = begun(PLAN, tmp_path / "c")
    checkpoint.close()
    changed(
        checkpoint.folder,
        f"UPDATE base SET document = '[1]', digest = '{hashlib.sha256(b'[1]').hexdigest()}'",
    )
    with pytest.raises(RunDirectoryError, match=r"run\.sqlite is damaged"):
        checkpoint.record.extend({})


def test_another_configuration_is_refused_by_the_name_of_the_field(tmp_path):
    begun(PLAN, tmp_path / "c")
    other = Checkpoint(tmp_path / "c", {**SETTINGS, "privacy.epsilon": 2.0})
    with pytest.raises(
        RunDirectoryError,
        match=r"privacy\.epsilon is 2\.0, but the run in .* began with 8\.0; resume it with its own settings",
    ):
        other.restore(PLAN, SGD)


def test_another_calculation_is_refused_with_both_values_but_for_rounding(tmp_path):
    checkpoint, state = begun(PLAN, tmp_path / "c")
    checkpoint = replace(checkpoint, calculated={"the L2 radius": 1.0}, every=1)
    advance(PLAN, state, checkpoint)
    with pytest.raises(
        RunDirectoryError, match=r"the L2 radius is 1\.5, .* began with 1\.0; .* with the version"
    ):
        replace(checkpoint, calculated={"the L2 radius": 1.5}).restore(PLAN, SGD)
    now = replace(checkpoint, calculated={"the L2 radius": 1 + 1e-12})
    now.restore(replace(PLAN, noise_multiplier=1 + 1e-12), SGD)
    with pytest.raises(
        RunDirectoryError, match=r"event of epoch 1 .*plier=1\.5.*plier=1\.0.* with the version"
    ):
        now.restore(replace(PLAN, noise_multiplier=1.5), SGD)


def test_a_base_with_the_state_of_another_optimizer_is_refused(tmp_path):
    """Also where another version is allowed: numpy's error would be no message."""
    checkpoint, _ = begun(PLAN, tmp_path / "c", rounds=4)
    with pytest.raises(RunDirectoryError, match=r"the state of the optimizer is .*'v': 'float32 \[50\]'"):
        replace(checkpoint, allow_version_change=True).restore(PLAN, Adam(0.1, 0.7, tau=1.0, beta2=0.9))


OLD, NEW = {"fedmf": "0.1.0", "code": "aaaa"}, {"fedmf": "0.2.0", "code": "bbbb"}


@pytest.mark.parametrize("before", [OLD, {}])
def test_other_code_continues_only_where_it_is_allowed_and_is_bound_from_then_on(tmp_path, caplog, before):
    checkpoint, state = begun(PLAN, tmp_path / "c")
    checkpoint = replace(checkpoint, code=before, every=1)
    advance(PLAN, state, checkpoint)
    other = replace(checkpoint, code=NEW)
    with pytest.raises(
        RunDirectoryError, match=r"so far with code (aaaa|unknown) and fedmf .* code bbbb and fedmf 0\.2\.0"
    ):
        other.restore(PLAN, SGD)
    state, _ = replace(other, allow_version_change=True).restore(PLAN, SGD)
    assert "It continues nevertheless" in caplog.text
    checkpoint.restore(PLAN, SGD)  # nothing has changed yet
    other.rebase(state)
    other.restore(PLAN, SGD)
    with pytest.raises(RunDirectoryError, match="this is code"):
        checkpoint.restore(PLAN, SGD)


def computing_others(plan, family="banded_toeplitz"):
    """Return the plan as another version would make it: other tables, whose errors and sensitivity are valid."""
    epochs = design_run(family, plan.factorization.workloads).epochs
    return replace(
        plan, factorization=RunFactorization(tuple(replace(one, family="optimal") for one in epochs))
    )


def test_within_an_epoch_other_tables_are_refused_and_at_its_boundary_they_are_free(tmp_path):
    """Rows of two matrices have a larger sensitivity than either."""
    other = computing_others(PLAN)
    for rounds in range(1, 8):
        checkpoint, state = begun(PLAN, tmp_path / str(rounds), 1, rounds)
        checkpoint.close()
        elsewhere = replace(checkpoint, mechanisms=other.factorization.epochs)
        before = {file.name: file.read_bytes() for file in checkpoint.folder.iterdir()}
        if rounds == 4:
            same(elsewhere.restore(other, SGD)[0], state)
            continue
        with pytest.raises(RunDirectoryError, match=rf"epoch {rounds // 4 + 1} .*larger sensitivity"):
            elsewhere.restore(other, SGD)
        assert {file.name: file.read_bytes() for file in checkpoint.folder.iterdir()} == before


def test_another_form_of_normals_is_another_format():
    """Rows drawn in another form would be other noise: a record says only in what format it is."""
    assert (record.FORMAT, record.NORMALS) == (8, 3)


def test_rows_of_two_matrices_in_one_epoch_have_a_larger_sensitivity_than_either():
    first = design("independent", prefix_sum(64)).stream.materialize_noising()
    second = design("optimal", prefix_sum(64)).stream.materialize_noising()
    hybrid = max(
        np.linalg.norm(np.linalg.inv(np.vstack([first[:cut], second[cut:]])), axis=0).max()
        for cut in range(1, 64)
    )
    assert hybrid == pytest.approx(1.8527, abs=1e-3)
    for one in (first, second):
        assert np.linalg.norm(np.linalg.inv(one), axis=0).max() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("every", [1, 3, 100])
@pytest.mark.parametrize("cut", [1, 3, 7])
def test_an_epoch_continues_with_the_tables_it_began_with(tmp_path, every, cut, straight, caplog):
    """Another version of the code computes others: kept tables are used, so that the releases are those of one run."""
    checkpoint, _ = begun(PLAN, tmp_path / "c", every, cut)
    kept = checkpoint.with_kept_tables(computing_others(PLAN, "blt"))
    assert f"epoch {cut // 4 + 1} continues with the tables that it began with" in caplog.text
    under_way, ended = (plan.factorization.epochs[cut // 4] for plan in (kept, PLAN))
    assert under_way.fingerprint == ended.fingerprint
    assert under_way.sensitivity == pytest.approx(ended.sensitivity, rel=1e-9)
    np.testing.assert_allclose(under_way.per_round_error, ended.per_round_error, rtol=1e-9)
    state, _ = replace(checkpoint, mechanisms=kept.factorization.epochs).restore(kept, SGD)
    while state.round < 4 * (cut // 4 + 1):
        state = advance(kept, state)
        same(state, straight[state.round])


@pytest.mark.parametrize("spoiled", [np.ones(3, "f4"), np.ones((4, 4), "f8"), np.array("tables")])
def test_kept_tables_that_are_not_those_of_the_epoch_are_never_used(tmp_path, spoiled, caplog):
    checkpoint, _ = begun(PLAN, tmp_path / "c", 1, 2)
    change_secrets(checkpoint, {"tables": spoiled})
    for now, refused in ((PLAN, False), (computing_others(PLAN), True)):
        found = checkpoint.with_kept_tables(now)
        restoring = replace(checkpoint, mechanisms=found.factorization.epochs)
        if refused:
            with pytest.raises(RunDirectoryError, match="began with other tables"):
                restoring.restore(found, SGD)
        else:
            restoring.restore(found, SGD)
    assert "continues with" not in caplog.text


def test_kept_tables_of_another_family_are_not_taken(tmp_path):
    """Both are made from one row of coefficients."""
    plan, other = small_plan(family="sqrt_toeplitz"), small_plan(family="banded_toeplitz")
    checkpoint, _ = begun(other, tmp_path / "c")
    assert checkpoint.with_kept_tables(plan) is plan
