"""Recursions and convolutions of our own are scipy.signal's, bit for bit."""

import sys

import numpy as np
import pytest
import scipy.signal

from fedmf.mechanisms import filters


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    """A process that has filtered nothing yet."""
    monkeypatch.setattr(filters, "_handled", 0)


@pytest.mark.parametrize("shape", [(1,), (2,), (1000,), (1, 4), (200, 7)])
@pytest.mark.parametrize("beta", [0.0, 0.9, 0.81, -0.3, 1.0])
def test_recursions_and_differences_are_those_of_scipy_bit_for_bit(shape, beta):
    rows = np.random.default_rng(1).normal(size=shape)
    for given in (rows, rows[::-1]):
        for numerator, denominator in (([1.0], [1.0, -beta]), ([1.0, -beta], [1.0])):
            twin = scipy.signal.lfilter(numerator, denominator, given, axis=0)
            before = given.copy()
            computed = filters.lfilter(numerator, denominator, given, axis=0)
            assert computed.tobytes() == twin.tobytes()
            np.testing.assert_array_equal(given, before)


@pytest.mark.parametrize(
    ("numerator", "denominator"),
    [([2.0], [1.0, -0.5]), ([1.0], [1.0, -0.5, 0.2]), ([1.0], [2.0, -0.5]), ([0.5, 1.0], [1.0])],
)
def test_every_other_filter_is_scipys_too(numerator, denominator):
    rows = np.random.default_rng(2).normal(size=(30, 4))
    for axis in (0, 1, -1):
        twin = scipy.signal.lfilter(numerator, denominator, rows, axis=axis)
        np.testing.assert_array_equal(filters.lfilter(numerator, denominator, rows, axis=axis), twin)
    twin = scipy.signal.lfilter([1.0], [1.0, -0.5], rows, axis=1)
    np.testing.assert_array_equal(filters.lfilter([1.0], [1.0, -0.5], rows, axis=1), twin)


@pytest.mark.parametrize(("left", "right"), [(1, 1), (3, 5), (500, 500), (1025, 4096)])
def test_convolutions_are_those_of_scipy_bit_for_bit(left, right):
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=left), rng.normal(size=right)
    assert filters.fftconvolve(x, y).tobytes() == scipy.signal.fftconvolve(x, y).tobytes()


def test_a_process_that_has_filtered_enough_leaves_recursions_to_scipy(monkeypatch):
    rows = np.ones(filters.PAYS // 2)
    twin = scipy.signal.lfilter([1.0], [1.0, -0.5], rows)
    monkeypatch.setitem(sys.modules, "scipy.signal", None)
    for _ in range(2):
        assert filters.lfilter([1.0], [1.0, -0.5], rows).tobytes() == twin.tobytes()
    with pytest.raises(ImportError):
        filters.lfilter([1.0], [1.0, -0.5], rows[:1])
    monkeypatch.setitem(sys.modules, "scipy.signal", scipy.signal)
    assert filters.lfilter([1.0], [1.0, -0.5], rows).tobytes() == twin.tobytes()
