from dataclasses import replace

import numpy as np
import pytest

from checkpoints import SETTINGS, SGD, advance, begun, same
from fedmf.errors import RunDirectoryError
from fedmf.mechanisms import design, design_run, prefix_sum
from fedmf.mechanisms.run_factorization import RunFactorization
from fedmf.npz import read_npz
from plans import KEY, small_plan
from server.checkpoint import Checkpoint
from server.files import packed
from server.state import first_state


def computing_others(plan, family="banded_toeplitz"):
    """Return the plan as another version would make it: other tables, whose errors and sensitivity are valid."""
    epochs = design_run(family, plan.factorization.workloads).epochs
    return replace(
        plan, factorization=RunFactorization(tuple(replace(one, family="optimal") for one in epochs))
    )


def test_within_an_epoch_other_tables_are_refused_and_at_its_boundary_they_are_free(tmp_path):
    plan = small_plan()
    other = computing_others(plan)
    for rounds in range(1, 8):
        checkpoint, state = begun(plan, tmp_path / str(rounds), every=1)
        for _ in range(rounds):
            state = advance(plan, state, checkpoint)
        elsewhere = replace(checkpoint, mechanisms=other.factorization.epochs)
        if rounds == 4:
            restored, _ = elsewhere.restore(other, SGD)
            same(restored, state)
            continue
        with pytest.raises(RunDirectoryError, match=r"other tables .* larger sensitivity"):
            elsewhere.restore(other, SGD)


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
@pytest.mark.parametrize("cut", [1, 2, 3, 5, 7])
def test_an_epoch_goes_on_with_the_tables_it_began_with(tmp_path, every, cut, caplog):
    """Another version of the code computes others: kept tables are used, so that the releases are those of one run."""
    plan = small_plan()
    straight = [first_state(plan, np.zeros(50, "f4"), KEY)]
    for _ in range(8):
        straight.append(advance(plan, straight[-1]))
    checkpoint, state = begun(plan, tmp_path / "c", every)
    for _ in range(cut):
        state = advance(plan, state, checkpoint)
    other = computing_others(plan, "blt")
    with caplog.at_level("WARNING"):
        kept = checkpoint.with_kept_tables(other)
    assert f"epoch {cut // 4 + 1} continues with the tables that it began with" in caplog.text
    under_way, ended = kept.factorization.epochs[cut // 4], plan.factorization.epochs[cut // 4]
    assert under_way.fingerprint == ended.fingerprint
    assert under_way.sensitivity == pytest.approx(ended.sensitivity, rel=1e-9)
    np.testing.assert_allclose(under_way.per_round_error, ended.per_round_error, rtol=1e-9)
    state, _ = replace(checkpoint, mechanisms=kept.factorization.epochs).restore(kept, SGD)
    while state.round < 4 * (cut // 4 + 1):
        state = advance(kept, state)
        same(state, straight[state.round])


@pytest.mark.parametrize(
    "spoil", ["missing", "cut short", "other tables", "other epoch", "no tables of ours"]
)
def test_kept_tables_that_are_not_those_of_the_epoch_are_never_used(tmp_path, spoil, caplog):
    plan = small_plan()
    checkpoint, state = begun(plan, tmp_path / "c", every=1)
    state = advance(plan, advance(plan, state, checkpoint), checkpoint)
    epoch, kept = checkpoint.record.tables()
    stored = read_npz(kept)
    spoiled = {
        "missing": (epoch, b""),
        "cut short": (epoch, kept[:100]),
        "other tables": (epoch, packed(**stored | {"tables": stored["tables"] * np.float32(1.5)})),
        "other epoch": (7, kept),
        "no tables of ours": (epoch, b"tables"),
    }
    with_tables(checkpoint, spoiled[spoil])
    caplog.set_level("WARNING")
    for now, refused in ((plan, False), (computing_others(plan), True)):
        kept = checkpoint.with_kept_tables(now)
        restoring = replace(checkpoint, mechanisms=kept.factorization.epochs)
        if refused:
            with pytest.raises(RunDirectoryError, match="began with other tables"):
                restoring.restore(kept, SGD)
        else:
            restoring.restore(kept, SGD)
    assert "continues with" not in caplog.text


def with_tables(checkpoint, tables):
    """Put other tables into a checkpoint."""
    checkpoint.record.extend({}, tables)


def test_kept_tables_of_another_family_are_not_taken_for_this_ones(tmp_path):
    """Both are made from one row of coefficients."""
    plan, other = small_plan(family="sqrt_toeplitz"), small_plan(family="banded_toeplitz")
    checkpoint, _ = begun(other, tmp_path / "c")
    assert checkpoint.with_kept_tables(plan) is plan


def test_where_no_tables_are_known_none_are_kept(tmp_path):
    (tmp_path / "c").mkdir()
    plan, checkpoint = small_plan(), Checkpoint(tmp_path / "c", SETTINGS)
    checkpoint.begin(first_state(plan, np.zeros(50, "f4"), KEY))
    assert checkpoint.record.tables()[1] == b""
    same(checkpoint.restore(plan, SGD)[0], first_state(plan, np.zeros(50, "f4"), KEY))


def test_tables_are_kept_for_one_epoch_and_not_beyond_the_run(tmp_path):
    plan = small_plan()
    checkpoint, state = begun(plan, tmp_path / "c", every=100)
    for released in range(8):
        assert checkpoint.record.tables()[0] == released // 4
        state = advance(plan, state, checkpoint)
    assert checkpoint.record.tables()[1] == b""


def test_a_resumed_run_keeps_the_tables_of_its_epoch_for_the_next_resume(tmp_path):
    plan = small_plan()
    checkpoint, state = begun(plan, tmp_path / "c")
    before = checkpoint.record.tables()
    state = advance(plan, advance(plan, state, checkpoint), checkpoint)
    for _ in range(2):
        restored, _ = checkpoint.restore(plan, SGD)
        checkpoint.rebase(restored)
        assert checkpoint.record.tables() == before
        same(restored, state)
