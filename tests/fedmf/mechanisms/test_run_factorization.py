"""Mechanisms that know the run: against known optima, and against the dense matrices of the whole run.

Also of a run that was extended: its cost as one run, and that its added part is the best there is.
"""

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy.linalg import block_diag

from fedmf.errors import DataError, SettingError
from fedmf.mechanisms import (
    FAMILIES,
    Workload,
    design,
    design_run,
    momentum,
    of_run,
    prefix_sum,
    relative_gap,
    restarted,
    run_lower_bound,
    strategy_family,
    workload as workloads,
)
from fedmf.mechanisms.optimum import fixed_point
from fedmf.mechanisms.run_factorization import as_run
from fedmf.mechanisms.schedules import rates
from fedmf.mechanisms.workload import NONE


@dataclass(frozen=True)
class WholeRun:
    """A run and its known root losses: by epoch, of the run, of the prefix-sum design and of independent noise."""

    rounds: int
    epochs: int
    momentum: float
    schedule: str
    epoch_root_loss: tuple[float, ...]
    root_loss: float
    prefix_sum_root_loss: float
    independent_root_loss: float

    @property
    def workloads(self) -> tuple[Workload, ...]:
        return of_run(
            self.rounds, self.epochs, self.momentum, rates(self.schedule, self.rounds * self.epochs)
        )

    def __str__(self) -> str:
        return f"{self.rounds}x{self.epochs}-{self.momentum}-{self.schedule}"


# The root loss of each epoch's optimum, all later rounds of the run counted, was computed apart from this code, from dense
# eigendecompositions of W_e = A[:, e]^T A[:, e] with A the workload of the whole run, to a relative gap of 5e-11 between primal
# and dual. The last two numbers cost designs that do not know the run: the optimum of one epoch of prefix sums, and
# independent noise.
WHOLE_RUNS = (
    WholeRun(22, 8, 0.0, "constant",
             (18.57403949, 17.67476479, 16.70077838, 15.62958004, 14.42438506, 13.01678677, 11.24616545, 8.35714459),
             41.88567475099597, 54.06008099482908, 124.80384609458156),
    WholeRun(22, 8, 0.9, "constant",
             (144.81871402, 135.4502443, 125.22851503, 113.86671054, 100.87152095, 85.27459443, 64.90183137,
              35.45157563),
             301.46794104907957, 478.0302262407455, 1153.349091680632),
    WholeRun(32, 16, 0.0, "constant",
             (29.93302989, 29.19793368, 28.4366534, 27.64617218, 26.82284469, 25.96219691, 25.05863544, 24.10501078,
              23.09193344, 22.00664641, 20.83104145, 19.53785628, 18.08246605, 16.38170904, 14.23942559,
              10.70325665),
             93.11172873765089, 135.7790578864995, 362.392052892996),
    WholeRun(128, 4, 0.9, "constant",
             (309.2830988, 274.64617448, 230.54270183, 155.77409288),
             498.4998111745463, 780.2291280181979, 3527.585042587489),
    WholeRun(16, 3, 0.5, "cooldown",
             (18.71304465, 15.63626171, 9.37005168),
             26.124099769483273, 31.406973816230824, 65.33090940619813),
    WholeRun(100, 5, 0.0, "decay",
             (34.9234372, 25.50413019, 16.91010151, 9.31640235, 3.15008658),
             47.46342858874558, 61.64961448702768, 250.5),
    WholeRun(7, 2, 0.0, "constant",
             (5.37127218, 3.85758559),
             6.612982036244384, 6.893512313054989, 10.246950765959598),
)  # fmt: skip
every_known_run = pytest.mark.parametrize("known", WHOLE_RUNS, ids=str)


def dense_errors(run, eta):
    """Return the error of every round of the run, (E T,), from the dense workload and the noise of all epochs."""
    total = run.rounds * len(run.epochs)
    whole = workloads.materialize(Workload(total, run.workloads[0].momentum, eta))
    noise = block_diag(*(epoch.sensitivity * epoch.stream.materialize_noising() for epoch in run.epochs))
    return np.linalg.norm(whole @ noise, axis=1)


@every_known_run
def test_certificate_of_each_epoch_encloses_its_known_optimum(known):
    solutions = fixed_point.certified_run(known.workloads)
    for solution, optimum in zip(solutions, known.epoch_root_loss, strict=True):
        assert solution.lower <= optimum * (1 + 1e-9)
        assert solution.upper >= optimum * (1 - 1e-9)
        assert (solution.upper / solution.lower) ** 2 - 1 <= 1e-6
        assert solution.upper == pytest.approx(optimum, rel=1e-6)
    assert run_lower_bound(known.workloads) == pytest.approx(known.root_loss, rel=1e-6)


@every_known_run
def test_what_is_deployed_is_within_1e_4_of_the_certificate_with_few_buffers(known):
    run = design_run("optimal", known.workloads)
    for epoch, optimum in zip(run.epochs, known.epoch_root_loss, strict=True):
        assert (epoch.root_loss / optimum) ** 2 - 1 <= 1e-4
        assert epoch.stream.buffers <= 4
    assert run.root_loss == pytest.approx(known.root_loss, rel=5e-5)
    assert 0 <= relative_gap(run) <= 5e-5


@every_known_run
def test_designs_that_do_not_know_the_run_cost_what_is_known_of_them(known):
    alone = design("optimal_dense", prefix_sum(known.rounds))
    cost = as_run([alone.costed_on(workload) for workload in known.workloads])
    assert cost.root_loss == pytest.approx(known.prefix_sum_root_loss, rel=1e-5)
    assert design_run("independent", known.workloads).root_loss == pytest.approx(
        known.independent_root_loss, rel=1e-9
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("beta", "schedule"), [(0.0, "constant"), (0.9, "cooldown")])
def test_errors_of_every_family_are_those_of_the_dense_run(family, beta, schedule):
    """Each epoch's own noise, and what all earlier ones left in momentum and model."""
    eta = rates(schedule, 36)
    run = design_run(family, of_run(9, 4, beta, eta))
    expected = dense_errors(run, eta)
    np.testing.assert_allclose(run.per_round_error, expected, rtol=1e-6)
    assert run.root_loss == pytest.approx(np.linalg.norm(expected), rel=1e-6)
    assert run.rms_error == pytest.approx(np.linalg.norm(expected) / 6, rel=1e-6)
    assert run.max_error == pytest.approx(expected.max(), rel=1e-6)
    assert run.root_loss >= run_lower_bound(run.workloads)


@pytest.mark.parametrize("family", ["optimal", "optimal_dense", "blt", "banded_toeplitz", "banded_low_rank"])
def test_fitted_families_gain_by_knowing_the_run(family):
    run = of_run(16, 6, 0.9)
    knowing = design_run(family, run)
    ignorant = restarted(design(family, momentum(16, 0.9)), 6)
    assert knowing.root_loss < 0.99 * ignorant.root_loss
    assert knowing.epochs[-1].root_loss == pytest.approx(ignorant.epochs[-1].root_loss, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("rounds", "later", "beta"), [(65536, 10**6, 0.0), (16384, 10**6, 0.9)])
def test_a_million_later_rounds_are_certified_and_deployed_with_eight_buffers(rounds, later, beta):
    workload = of_run(rounds, 1 + -(-later // rounds), beta)[0]
    solution = fixed_point.certified(workload)
    assert (solution.upper / solution.lower) ** 2 - 1 <= 1e-6
    mechanism = design("optimal", workload)
    assert (mechanism.root_loss / solution.lower) ** 2 - 1 <= 1e-4
    assert mechanism.stream.buffers <= 8


def test_a_restart_goes_on_with_the_rates_of_an_epoch():
    eta = (1.0, 0.5, 0.25)
    run = restarted(design("optimal", momentum(3, 0.5, eta)), 3)
    assert [workload.later.c for workload in run.workloads] == [6, 3, 0]
    assert all(workload.learning_rates == eta for workload in run.workloads)
    np.testing.assert_allclose(run.per_round_error, dense_errors(run, eta * 3), rtol=1e-9)
    assert run.is_restart_of_one
    assert restarted(run.epochs[0], 3).root_loss == pytest.approx(run.root_loss)


def test_a_family_of_ones_own_is_fitted_to_each_epoch_of_the_run():
    asked = []

    def matrix(workload):
        asked.append(workload)
        return design("sqrt_toeplitz", prefix_sum(workload.rounds)).stream.materialize_strategy()

    run = design_run(strategy_family("mine", matrix), of_run(8, 3, 0.5))
    assert asked == list(of_run(8, 3, 0.5))
    np.testing.assert_allclose(run.per_round_error, dense_errors(run, None), rtol=1e-5)


def run_of(*slopes):
    """Three epochs of C = 1 and the epoch's slope below the diagonal: their sensitivity is (1 + slope^2)^(1/2)."""

    def matrix(workload):
        return np.eye(4) + slopes[2 - int(workload.later.c) // 4] * np.eye(4, k=-1)

    return design_run(strategy_family("mine", matrix), of_run(4, 3))


def test_the_sensitivity_of_a_run_is_the_largest_of_its_epochs():
    runs = {slopes: run_of(*slopes) for slopes in itertools.permutations((0.25, 0.5, 0.75))}
    for slopes, run in runs.items():
        found = [epoch.sensitivity for epoch in run.epochs]
        assert found == pytest.approx(np.hypot(1, slopes), rel=1e-6)
        assert run.sensitivity == max(found)


def test_a_fingerprint_tells_runs_apart_that_begin_alike():
    run, others = (
        run_of(0.5, 0.25, 0.75),
        (run_of(0.5, 0.5, 0.75), run_of(0.5, 0.25, 0.5), run_of(0.5, 0.75, 0.25)),
    )
    assert run.fingerprint == run_of(0.5, 0.25, 0.75).fingerprint
    for other in others:
        assert other.epochs[0].fingerprint == run.epochs[0].fingerprint
        assert other.fingerprint != run.fingerprint


def test_epochs_that_do_not_make_a_run_are_refused():
    first, second = (design("independent", workload) for workload in of_run(4, 2, 0.9))
    for other in (
        design("binary_tree", second.workload),
        design("independent", momentum(5, 0.9)),
        design("independent", momentum(4, 0.5)),
    ):
        with pytest.raises(SettingError, match="all epochs of a run must have the same"):
            as_run((first, other))
    for make, *given, said in (
        (as_run, (), "number of epochs is 0"),
        (design_run, "honaker_full", of_run(4096, 2), "honaker_full takes at most 2048"),
    ):
        with pytest.raises(SettingError, match=said):
            make(*given)


def test_epochs_are_costed_with_the_later_rounds_that_they_have_in_the_run():
    """Whatever their workloads say: costed on other later rounds they would state too small an error."""
    eta = rates("cooldown", 24)
    run = design_run("independent", of_run(8, 3, 0.9, eta))
    alone = (replace(epoch, workload=replace(epoch.workload, later=NONE)) for epoch in run.epochs)
    again = as_run(tuple(alone))
    assert again.workloads == run.workloads
    np.testing.assert_allclose(again.per_round_error, dense_errors(run, eta), rtol=1e-9)
    swapped = as_run(run.epochs[::-1])
    np.testing.assert_allclose(
        swapped.per_round_error, dense_errors(swapped, (*eta[16:], *eta[8:16], *eta[:8]))
    )


SHORT = [known for known in WHOLE_RUNS if known.rounds * known.epochs <= 180]


def begun_and_added(family, rounds, begun, after, added, beta, schedule):
    """A run of `begun` epochs that ended after `after`, and the run of `added` epochs that continues it."""
    first, part = (
        design_run(family, of_run(rounds, epochs, beta, rates(schedule, rounds * epochs)))
        for epochs in (begun, added)
    )
    eta = (*rates(schedule, rounds * begun)[: rounds * after], *rates(schedule, rounds * added))
    return first, part, eta


@pytest.mark.parametrize(
    "family", ["optimal", "sqrt_toeplitz", "binary_tree", "banded_low_rank", "independent"]
)
@pytest.mark.parametrize(("beta", "schedule", "after"), [(0.0, "constant", 3), (0.9, "decay", 3), (0.5, "cooldown", 2)])  # fmt: skip
def test_the_error_of_every_round_is_that_of_the_dense_matrices_of_both_parts(family, beta, schedule, after):
    first, part, eta = begun_and_added(family, 5, 3, after, 2, beta, schedule)
    run = as_run((*first.epochs[:after], *part.epochs))
    dense = dense_errors(run, eta)
    np.testing.assert_allclose(run.per_round_error, dense, rtol=1e-5)
    assert run.root_loss == pytest.approx(np.linalg.norm(dense), rel=1e-5)


@pytest.mark.parametrize("known", SHORT, ids=str)
def test_the_added_epochs_add_the_known_optimum_to_what_was_left_before(known):
    """The oracle's root loss of a run of their own: dense eigendecompositions, apart from this code."""
    before = design_run("optimal", of_run(known.rounds, 2, known.momentum))
    run = as_run((*before.epochs, *design_run("optimal", known.workloads).epochs))
    ours = np.square(run.per_round_error[2 * known.rounds :]).sum()
    eta = (*[1.0] * (2 * known.rounds), *rates(known.schedule, known.rounds * known.epochs))
    whole = workloads.materialize(Workload(len(eta), known.momentum, eta))
    columns = whole[2 * known.rounds :, : 2 * known.rounds]
    left = (
        np.linalg.norm(columns @ block_diag(*(epoch.stream.materialize_noising() for epoch in before.epochs)))
        ** 2
    )
    assert ours - left == pytest.approx(known.root_loss**2, rel=2e-4)


# One family for each kind of stream.
KINDS = ("optimal", "banded_toeplitz", "binary_tree", "optimal_dense")


@pytest.mark.parametrize("family", KINDS)
def test_kept_tables_make_the_same_stream_and_others_are_costed_by_the_one_that_they_make(family):
    """The noise is scaled by this sensitivity: that of the tables before would state too little noise as enough."""
    mechanism = design(family, prefix_sum(12))
    tables = mechanism.stream.tables.copy()
    assert mechanism.with_tables(tables).fingerprint == mechanism.fingerprint
    if tables.ndim == 1:
        tables[1:] *= np.float32(0.5)
    else:
        tables *= np.float32(1.25)
    other = mechanism.with_tables(tables)
    np.testing.assert_array_equal(other.stream.tables, tables)
    decoder, encoder = other.materialize()
    norm = np.linalg.norm(encoder, axis=0).max()
    assert other.sensitivity == pytest.approx(norm, rel=1e-5)
    errors = norm * np.linalg.norm(decoder, axis=1)
    np.testing.assert_allclose(other.per_round_error, errors, rtol=1e-4)
    assert other.left[1, 1] == pytest.approx(errors[-1] ** 2, rel=1e-4)
    assert other.fingerprint != mechanism.fingerprint


@pytest.mark.parametrize("family", KINDS)
@pytest.mark.parametrize(
    "spoil",
    [
        lambda tables: tables.astype(np.float64),
        lambda tables: tables[np.newaxis],
        lambda tables: tables * np.float32(np.nan),
    ],
    ids=["another type", "another form", "not finite"],
)
def test_tables_that_a_stream_cannot_have_are_refused(family, spoil):
    mechanism = design(family, prefix_sum(12))
    with pytest.raises(DataError, match=rf"none of {family}"):
        mechanism.with_tables(spoil(mechanism.stream.tables))
    if family == "optimal":
        with pytest.raises(DataError, match="make no finite noise; they are none of optimal"):
            mechanism.with_tables(mechanism.stream.tables * np.float32(1e30))


@pytest.mark.parametrize("family", ["optimal", "sqrt_toeplitz", "honaker_online", "honaker_full"])
def test_post_processing_changes_the_cost_and_not_the_stream(family):
    mechanism = design(family, prefix_sum(30))
    other = momentum(30, 0.8, rates("cosine", 30))
    processed = mechanism.costed_on(other)
    assert processed.stream is mechanism.stream
    assert processed.sensitivity == mechanism.sensitivity
    B, C = processed.materialize()
    np.testing.assert_allclose(
        B @ C, workloads.materialize(other), atol=1e-4 if family == "honaker_full" else 1e-10
    )
    np.testing.assert_allclose(
        processed.per_round_error, mechanism.sensitivity * np.linalg.norm(B, axis=1), rtol=1e-10
    )
    with pytest.raises(SettingError, match="31 rounds"):
        mechanism.costed_on(prefix_sum(31))
