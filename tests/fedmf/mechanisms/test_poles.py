"""The pole expansion against Zolotarev's theorem, and the spectral interval against dense eigenvalues."""

import math

import numpy as np
import pytest

from fedmf.mechanisms.optimum.poles import Interval, poles, spectral_interval, zolotarev
from fedmf.mechanisms.schedules import rates
from fedmf.mechanisms.workload import gram, of_run
from oracles import every_workload, precision, some_v

CONDITIONS = [1.0, 1.5, 2.0, 10.0, 1e2, 1e4, 1e6, 1e8, 1e10, 1e12, 1e14, 1e18, 1e23, 1e40]
FLOATS = 2e-14  # what float64 adds to a sum of up to a hundred poles


def error_bound(condition, count):
    """4 exp(-2 pi^2 K / log(16 cond)), which the relative error of K = `count` poles stays below."""
    return 4 * math.exp(-2 * math.pi**2 * count / math.log(16 * condition))


def errors(expansion, condition, points=6001):
    """The relative error of the poles on a grid over [1, condition], both ends included."""
    x = np.geomspace(1, condition, points)
    return (expansion.weights / (x[:, None] + expansion.shifts)).sum(1) * np.sqrt(x) - 1


@pytest.mark.parametrize("condition", CONDITIONS)
def test_poles_stay_below_zolotarevs_bound(condition):
    """For every number of poles until float64 ends."""
    count = 1
    while (bound := error_bound(condition, count)) > 1e-15:
        assert np.abs(errors(zolotarev(Interval(1.0, condition), count), condition)).max() <= bound + FLOATS
        count += 1
    assert count > 4


@pytest.mark.parametrize(
    ("condition", "count"),
    [(1.5, 1), (1.5, 2), (1e2, 4), (1e6, 1), (1e6, 5), (1e14, 15), (1e23, 20)],
)
def test_no_rational_function_of_the_degree_does_better(condition, count):
    """The error alternates 2 K + 1 times between its largest values up and down: Chebyshev's sign of the best."""
    error = errors(zolotarev(Interval(1.0, condition), count), condition, 40001)
    largest = np.abs(error).max()
    turns = [0, *(np.flatnonzero(np.diff(np.sign(np.diff(error)))) + 1), len(error) - 1]
    np.testing.assert_allclose(np.abs(error[turns]), largest, rtol=1e-3)
    assert np.all(error[turns][:-1] * error[turns][1:] < 0)
    assert len(turns) == 2 * count + 1


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("tolerance", [0.5, 1e-3, 1e-8, 1e-10])
def test_number_of_poles_is_the_least_that_the_bound_allows(condition, tolerance):
    count = len(poles(Interval(3.0, 3.0 * condition), tolerance).shifts)
    assert error_bound(condition, count) <= tolerance * (1 + 1e-12)
    assert count == 1 or error_bound(condition, count - 1) > tolerance


@every_workload
def test_interval_holds_the_whole_spectrum(workload):
    v = some_v(workload)
    values = np.linalg.eigvalsh(precision(workload) / np.sqrt(np.outer(v, v)))
    interval = spectral_interval(v, workload)
    # The dense eigenvalues err by rounding of the largest.
    assert interval.low <= values.min() + 1e-14 * values.max()
    assert values.max() <= interval.high * (1 + 1e-13)
    assert interval.high <= 1.5 * values.max()


@pytest.mark.parametrize("beta", [0.0, 0.9])
@pytest.mark.parametrize("epochs", [2, 20])
def test_interval_holds_the_spectrum_of_an_epoch_with_rounds_behind(beta, epochs):
    """The low end knows the rounds that follow; the high end, which does not, still bounds: W >= A^T A, P <= P_0."""
    workload = of_run(40, epochs, beta, rates("cosine", 40 * epochs))[0]
    v = some_v(workload)
    spread = np.sqrt(np.outer(v, v))
    # The low end of V^-1/2 P V^-1/2 is the inverse of the high end of V^1/2 W V^1/2, which is accurate.
    lowest = 1 / np.linalg.eigvalsh(spread * gram(workload)).max()
    highest = np.linalg.eigvalsh(precision(workload) / spread).max()
    interval = spectral_interval(v, workload)
    assert 0.9 * lowest <= interval.low <= lowest * (1 + 1e-13)
    assert np.linalg.eigvalsh(np.linalg.inv(gram(workload)) / spread).max() <= highest * (1 + 1e-9)
    assert highest <= interval.high * (1 + 1e-13)
