"""The pole expansion and the spectral interval against dense eigenvalues."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmf.mechanisms.optimum.poles import Interval, poles, spectral_interval
from workloads import every_workload, precision, some_v


@given(st.floats(-6, 6), st.floats(0, 14), st.floats(0, 1), st.sampled_from([1e-4, 1e-10]))
def test_poles_reach_the_inverse_square_root(log_low, decades, place, tolerance):
    low = 10.0**log_low
    shifts, weights = poles(Interval(low, low * 10**decades), tolerance)
    value = low * 10 ** (place * decades)
    assert (weights / (value + shifts)).sum() * np.sqrt(value) == pytest.approx(1, rel=tolerance)
    assert np.all(shifts > 0)
    assert np.all(weights > 0)


@every_workload
def test_interval_holds_the_whole_spectrum(workload):
    v = some_v(workload)
    values = np.linalg.eigvalsh(precision(workload) / np.sqrt(np.outer(v, v)))
    interval = spectral_interval(v, workload)
    # The dense eigenvalues err by rounding of the largest.
    assert interval.low <= values.min() + 1e-14 * values.max()
    assert values.max() <= interval.high * (1 + 1e-13)
    assert interval.high <= 1.5 * values.max()
