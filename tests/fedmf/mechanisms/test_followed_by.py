"""The noise of a run that was extended: what it costs as one run, and that its added part is the best there is."""

import numpy as np
import pytest
from scipy.linalg import block_diag

from fedmf.errors import SettingError
from fedmf.mechanisms import Workload, design_run, of_run, run_lower_bound, workload as workloads
from fedmf.mechanisms.run_factorization import costed_on, followed_by
from fedmf.mechanisms.schedules import rates
from whole_runs import WHOLE_RUNS

SHORT = [known for known in WHOLE_RUNS if known.rounds * known.epochs <= 180]


def begun_and_added(family, rounds, begun, after, added, momentum, schedule):
    """A run of `begun` epochs that ended after `after`, and the run of `added` epochs that goes on from it."""
    first, part = (
        design_run(family, of_run(rounds, epochs, momentum, rates(schedule, rounds * epochs)))
        for epochs in (begun, added)
    )
    eta = (*rates(schedule, rounds * begun)[: rounds * after], *rates(schedule, rounds * added))
    return first, part, eta


@pytest.mark.parametrize(
    "family", ["optimal", "sqrt_toeplitz", "binary_tree", "banded_low_rank", "independent"]
)
@pytest.mark.parametrize(("momentum", "schedule", "after"), [(0.0, "constant", 3), (0.9, "decay", 3), (0.5, "cooldown", 2)])  # fmt: skip
def test_the_error_of_every_round_is_that_of_the_dense_matrices_of_both_parts(
    family, momentum, schedule, after
):
    first, part, eta = begun_and_added(family, 5, 3, after, 2, momentum, schedule)
    run = followed_by(first, after, part)
    noise = block_diag(*(epoch.sensitivity * epoch.stream.materialize_noising() for epoch in run.epochs))
    whole = workloads.materialize(Workload(5 * (after + 2), momentum, eta))
    dense = np.linalg.norm(whole @ noise, axis=1)
    np.testing.assert_allclose(run.per_round_error, dense, rtol=1e-5)
    assert run.root_loss == pytest.approx(np.linalg.norm(dense), rel=1e-5)


@pytest.mark.parametrize("known", SHORT, ids=str)
def test_the_added_epochs_add_the_known_optimum_to_what_was_left_before(known):
    """The oracle's root loss of a run of their own: dense eigendecompositions, apart from this code."""
    before = design_run("optimal", of_run(known.rounds, 2, known.momentum))
    part = design_run("optimal", known.workloads)
    run = followed_by(before, 2, part)
    ours = np.square(run.per_round_error[2 * known.rounds :]).sum()
    eta = (*[1.0] * (2 * known.rounds), *rates(known.schedule, known.rounds * known.epochs))
    whole = workloads.materialize(Workload(len(eta), known.momentum, eta))
    columns = whole[2 * known.rounds :, : 2 * known.rounds]
    left = (
        np.linalg.norm(columns @ block_diag(*(epoch.stream.materialize_noising() for epoch in before.epochs)))
        ** 2
    )
    assert ours - left == pytest.approx(known.root_loss**2, rel=2e-4)


@pytest.mark.parametrize("known", SHORT, ids=str)
def test_no_design_that_counts_other_later_rounds_leaves_less_in_the_added_rounds(known):
    before = design_run("optimal", of_run(known.rounds, 2, known.momentum))
    best = followed_by(before, 2, design_run("optimal", known.workloads))
    longer = design_run("optimal", of_run(known.rounds, known.epochs + 3, known.momentum))
    alone = design_run("optimal", of_run(known.rounds, 1, known.momentum)).epochs * known.epochs
    added = slice(2 * known.rounds, None)
    total = np.square(best.per_round_error[added]).sum()
    for other in (longer.epochs[: known.epochs], alone):
        worse = (*best.epochs[:2], *other)
        cost = np.square(costed_on(worse, best.workloads).per_round_error[added]).sum()
        assert cost > total * (1 + 1e-4)
    lower = run_lower_bound(known.workloads) ** 2
    assert total >= lower


def test_earlier_epochs_keep_the_streams_that_they_had():
    first, part, _ = begun_and_added("optimal", 5, 3, 2, 2, 0.9, "cooldown")
    run = followed_by(first, 2, part)
    assert [epoch.fingerprint for epoch in run.epochs] == [
        epoch.fingerprint for epoch in (*first.epochs[:2], *part.epochs)
    ]
    assert len(run.epochs) == 4


def test_parts_that_cannot_follow_each_other_are_refused():
    first = design_run("optimal", of_run(5, 2, 0.9))
    for other, says in (
        (design_run("optimal", of_run(4, 1, 0.9)), "4 rounds"),
        (design_run("independent", of_run(5, 1, 0.9)), "independent"),
        (design_run("optimal", of_run(5, 1, 0.5)), "momentum"),
    ):
        with pytest.raises(SettingError, match=says):
            followed_by(first, 2, other)
