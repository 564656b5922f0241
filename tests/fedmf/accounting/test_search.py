"""Root and minimum of one variable against scipy's and against functions whose answer is known."""

import math

import pytest
from scipy.optimize import minimize_scalar

from fedmf.accounting.search import find_minimum, find_root

ROOT = 0.7391
INCREASING = {
    "linear": lambda x: x - ROOT,
    "cubic": lambda x: (x - ROOT) ** 3,
    "steep": lambda x: math.expm1(9 * (x - ROOT)),
    "flat": lambda x: math.tanh(5 * (x - ROOT)),
    "step": lambda x: float((x > ROOT) - (x < ROOT)),
    "infinite": lambda x: -math.inf if x < ROOT - 0.5 else x - ROOT,
}
VALLEYS = {
    "parabola": lambda x: (x - ROOT) ** 2,
    "quartic": lambda x: (x - ROOT) ** 4,
    "corner": lambda x: abs(x - ROOT),
    "asymmetric": lambda x: math.exp(3 * (x - ROOT)) - 3 * (x - ROOT),
    "wall": lambda x: math.inf if x < ROOT - 0.2 else (x - ROOT) ** 2,
}


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("function", INCREASING.values(), ids=INCREASING)
@pytest.mark.parametrize("ends", [(0.0, 1.0), (-3.0, 40.0), (ROOT, 2.0), (-1.0, ROOT)])
def test_the_root_is_found_to_the_tolerance(function, sign, ends):
    calls = []

    def counted(x):
        calls.append(x)
        return sign * function(x)

    assert find_root(counted, *ends, tolerance=1e-9) == pytest.approx(ROOT, abs=1e-9)
    assert len(calls) <= 60  # bisection alone takes 36


def test_no_tolerance_is_too_small_to_end():
    assert find_root(lambda x: x - ROOT, 0.0, 1.0, tolerance=5e-324) == pytest.approx(ROOT, rel=1e-15)


@pytest.mark.parametrize("function", VALLEYS.values(), ids=VALLEYS)
@pytest.mark.parametrize("ends", [(0.0, 1.0), (-3.0, 5.0), (0.7, 0.75)])
def test_the_minimum_is_as_low_as_scipys(function, ends):
    place, value = find_minimum(function, *ends, tolerance=1e-6)
    assert value == function(place)
    finite = (max(ends[0], ROOT - 0.2), ends[1])
    scipys = minimize_scalar(function, bounds=finite, method="bounded", options={"xatol": 1e-6})
    assert value <= scipys.fun + 2e-6


def test_a_minimum_at_an_end_is_approached_and_not_passed():
    for slope, end in ((1, 0.0), (-1, 2.0)):
        place, _ = find_minimum(lambda x, slope=slope: slope * x, 0.0, 2.0, tolerance=1e-6)
        assert place == pytest.approx(end, abs=1e-5)
        assert 0 < place < 2


def test_a_smooth_minimum_takes_few_evaluations():
    calls = []

    def counted(x):
        calls.append(x)
        return math.cosh(x - ROOT)

    find_minimum(counted, -1.0, 2.0, tolerance=1e-6)
    assert len(calls) < 15  # golden sections alone take 31
