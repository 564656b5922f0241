import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedmf.errors import SettingError
from fedmf.mechanisms import workload as workloads
from fedmf.mechanisms.schedules import rates
from fedmf.mechanisms.workload import Workload, momentum, prefix_sum

WORKLOADS = [
    prefix_sum(1),
    prefix_sum(9),
    momentum(9, 0.9),
    momentum(9, 0.5, rates("decay", 9)),
    momentum(8, 0, (1, 2, 3, 4, 4, 3, 2, 1)),
]
every_workload = pytest.mark.parametrize("workload", WORKLOADS)


def dense(workload):
    """S diag(eta) M_beta by its definition, entry by entry."""
    n, beta = workload.rounds, workload.momentum
    S = np.tril(np.ones((n, n)))
    M = np.array([[beta ** (i - j) if i >= j else 0.0 for j in range(n)] for i in range(n)])
    return S @ np.diag(workload.learning_rates or (1.0,) * n) @ M


@every_workload
def test_materialize_is_the_product_of_its_factors(workload):
    np.testing.assert_allclose(workloads.materialize(workload), dense(workload), rtol=1e-13)


@every_workload
def test_apply_solve_and_transpose_match_the_matrix(workload):
    x = np.random.default_rng(1).normal(size=(workload.rounds, 3))
    A = dense(workload)
    np.testing.assert_allclose(workloads.apply(workload, x), A @ x, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(workloads.transposed_apply(workload, x), A.T @ x, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(workloads.solve(workload, A @ x), x, rtol=1e-10, atol=1e-12)


@given(st.integers(1, 40), st.floats(0, 0.99))
def test_solve_undoes_apply(rounds, beta):
    x = np.sin(np.arange(1.0, rounds + 1))
    workload = momentum(rounds, beta, rates("cooldown", rounds))
    np.testing.assert_allclose(workloads.solve(workload, workloads.apply(workload, x)), x, atol=1e-8)


def test_kinds_are_told_apart():
    assert prefix_sum(3).is_prefix_sum
    assert Workload(3, 0.0, (1.0, 1.0, 1.0)).is_prefix_sum
    assert not momentum(3, 0.1).is_prefix_sum
    assert not momentum(3, 0, (2, 2, 2)).is_prefix_sum
    assert momentum(3, 0.1, (2, 2, 2)).is_toeplitz
    assert not momentum(3, 0.1, (3, 2, 2)).is_toeplitz


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "rounds is 0"),
        ((2.5,), "rounds is 2.5"),
        ((3, 1.0), "momentum is 1.0"),
        ((3, -0.1), "momentum is -0.1"),
        ((3, float("nan")), "momentum is nan"),
        ((3, 0.5, (1.0, 1.0)), "one a round, 3"),
        ((3, 0.5, (1.0, 0.0, 1.0)), "holds 0.0"),
        ((3, 0.5, (1.0, float("inf"), 1.0)), "holds inf"),
        ((3, 0.5, (1.0, float("nan"), 1.0)), "holds nan"),
        ((3, 0.5, (1.0, 1.0, 1e-7)), "at least 1e-06"),
    ],
)
def test_bad_workloads_are_refused(arguments, message):
    with pytest.raises(SettingError, match=message):
        Workload(*arguments)


def test_rows_of_another_length_are_refused():
    with pytest.raises(SettingError, match="there are 2 rows"):
        workloads.apply(prefix_sum(3), np.ones(2))
