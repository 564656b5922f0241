"""The square root in few buffers, plain and with unit columns, against dense matrices and published numbers."""

import numpy as np
import pytest

from fedmf.errors import SettingError
from fedmf.mechanisms import design, lower_bound, momentum, prefix_sum, workload
from fedmf.mechanisms.families import sqrt_blt, sqrt_toeplitz
from fedmf.mechanisms.schedules import rates
from fedmf.mechanisms.streams import toeplitz

# rounds: root loss, max error, sensitivity of the square root; computed elsewhere from dense float64 matrices.
SQUARE_ROOT = {
    16: (7.187257759140956, 1.9438788471567705, 1.394230557388831),
    64: (17.837411772651127, 2.3888481082954347, 1.5455898900728597),
    256: (42.70051729896562, 2.831049931861352, 1.682572415042322),
    1024: (99.51327702209801, 3.272554150273126, 1.8090202183151867),
}
# (rounds, beta): root loss and sensitivity of the square root of M, likewise.
OF_MOMENTUM = {
    (32, 0.9): (55.017920160790, 3.421047265418),
    (32, 0.95): (77.488180186640, 4.163853621777),
    (128, 0.9): (167.012879940151, 4.075601930301),
}
WORKLOADS = (
    prefix_sum(1),
    prefix_sum(2),
    prefix_sum(50),
    momentum(40, 0.9),
    momentum(30, 0.999),
    momentum(24, 0.5, rates("step", 24)),
)


def dense_square_root(of: workload.Workload) -> np.ndarray:
    """The square root of A at a constant rate, (T, T), by Newton's iteration on the dense matrix."""
    A = workload.materialize(momentum(of.rounds, of.momentum))
    root = np.eye(len(A))
    for _ in range(60 + 2 * len(A)):
        root = np.tril(root + np.linalg.solve(root, A)) / 2
    np.testing.assert_allclose(root @ root, A, atol=1e-8 * A.max())
    return root


@pytest.mark.parametrize("of", WORKLOADS, ids=str)
def test_the_short_square_root_is_the_dense_one(of: workload.Workload) -> None:
    root = dense_square_root(of)
    _, C = design("sqrt_blt", of).materialize()
    np.testing.assert_allclose(C, root, atol=1.1 * sqrt_blt.TOLERANCE * root.max())
    exact = design("sqrt_toeplitz", of)
    assert design("sqrt_blt", of).root_loss == pytest.approx(exact.root_loss, rel=2e-4)


@pytest.mark.parametrize("of", WORKLOADS, ids=str)
def test_the_normalized_square_root_is_the_dense_one_with_its_columns_divided_by_their_norms(
    of: workload.Workload,
) -> None:
    root = dense_square_root(of)
    expected = root / np.linalg.norm(root, axis=0)
    mechanism = design("normalized_sqrt", of)
    B, C = mechanism.materialize()
    np.testing.assert_allclose(C, expected, atol=2 * sqrt_blt.TOLERANCE)
    # 1e-5: the tables are rounded to float32 after their columns were made unit.
    np.testing.assert_allclose(np.linalg.norm(C, axis=0), 1, atol=1e-5)
    decoder = workload.materialize(of) @ np.linalg.inv(expected)
    assert mechanism.root_loss == pytest.approx(np.linalg.norm(decoder), rel=2e-4)
    assert np.linalg.norm(B) == pytest.approx(np.linalg.norm(decoder), rel=2e-4)


@pytest.mark.parametrize("rounds", SQUARE_ROOT)
def test_few_buffers_cost_what_the_whole_square_root_costs(rounds: int) -> None:
    mechanism = design("sqrt_blt", prefix_sum(rounds))
    found = (mechanism.root_loss, mechanism.max_error, mechanism.sensitivity)
    assert found == pytest.approx(SQUARE_ROOT[rounds], rel=2e-4)


@pytest.mark.parametrize(("rounds", "beta"), OF_MOMENTUM)
def test_few_buffers_cost_what_the_whole_square_root_of_momentum_costs(rounds: int, beta: float) -> None:
    mechanism = design("sqrt_blt", momentum(rounds, beta))
    assert (mechanism.root_loss, mechanism.sensitivity) == pytest.approx(OF_MOMENTUM[rounds, beta], rel=2e-4)


def test_buffers_grow_with_the_logarithm_of_the_rounds() -> None:
    found = {rounds: design("sqrt_blt", prefix_sum(rounds)).stream.buffers for rounds in (64, 1024, 16384)}
    assert found == {64: 6, 1024: 8, 16384: 11}
    assert design("sqrt_blt", momentum(1024, 0.9)).stream.buffers == 6  # as for a tenth of the rounds
    assert design("normalized_sqrt", prefix_sum(1024)).stream.buffers == 8
    assert design("sqrt_toeplitz", prefix_sum(1024)).stream.buffers == 1023


@pytest.mark.parametrize("of", [prefix_sum(300), momentum(300, 0.9), momentum(300, 0.995)], ids=str)
def test_the_fewest_buffers_within_the_tolerance_are_taken(of: workload.Workload) -> None:
    wanted = sqrt_toeplitz.coefficients(of)
    taken = design("sqrt_blt", of).stream.buffers

    def error(count: int) -> float:
        theta, weights = sqrt_blt.nodes(of, count)
        return float(np.abs(sqrt_blt.coefficients(theta, weights, 300) / wanted - 1).max())

    assert error(taken) <= sqrt_blt.TOLERANCE < error(taken - 1)


def test_sums_of_powers_are_those_of_the_recurrence_that_is_deployed() -> None:
    of = momentum(90, 0.8)
    theta, weights = sqrt_blt.nodes(of, 5)
    _, C = design("sqrt_blt", of, buffers=5).materialize()
    np.testing.assert_allclose(
        C, toeplitz.materialize(sqrt_blt.coefficients(theta, weights, 90), 90), atol=1e-5
    )
    assert ((theta > 0.8) & (theta < 1) & (weights > 0)).all()
    assert weights.sum() == pytest.approx(1, rel=1e-12)  # the diagonal of C


def test_the_normalized_square_root_has_its_published_errors() -> None:
    """Henzinger, Kalinin, Upadhyay 2025: rms 0.748 + log(T)/pi + o(1), largest 0.846 + log(T)/pi + o(1)."""
    rms, largest = [], []
    for rounds in (256, 4096, 65536):
        mechanism = design("normalized_sqrt", prefix_sum(rounds))
        rms.append(mechanism.rms_error - np.log(rounds) / np.pi)
        largest.append(mechanism.max_error - np.log(rounds) / np.pi)
    for excess, limit in ((rms, 0.748), (largest, 0.846)):
        assert excess == sorted(excess, reverse=True)
        assert limit < excess[-1] < limit + 0.03


@pytest.mark.parametrize("of", [prefix_sum(64), prefix_sum(1024), momentum(64, 0.9)], ids=str)
def test_the_normalized_square_root_is_near_the_optimum(of: workload.Workload) -> None:
    least = lower_bound(of)
    assert 1.005 < design("normalized_sqrt", of).root_loss / least < 1.03
    assert design("sqrt_toeplitz", of).root_loss / least > 1.05


@pytest.mark.parametrize("family", ["sqrt_blt", "normalized_sqrt"])
def test_buffers_out_of_range_are_refused(family: str) -> None:
    with pytest.raises(SettingError, match="buffers is 0"):
        design(family, prefix_sum(9), buffers=0)
    with pytest.raises(SettingError, match="buffers is 25; more than 24 change nothing"):
        design(family, prefix_sum(9), buffers=25)
