"""The power table: as often as it says, a factor in the noise is found."""

import numpy as np
import pytest

from audited_laws import banded_statement, noise, refuted
from fedmf.audit import power, residual, residuals
from fedmf.errors import SettingError

pytestmark = pytest.mark.long

STATED = banded_statement(3, 2)
SHAPE = {"runs": 4, "epochs": 2, "rounds": 3, "coordinates": 8}
LEVEL = 0.05  # large, so that few simulated audits tell


def by_test(factor, **shape):
    return {row.test: row.probability for row in power(factor, **shape)}


@pytest.mark.parametrize("factor", [0.7, 1.0, 1.35])
def test_a_factor_is_found_as_often_as_the_table_says(factor):
    rng, audits = np.random.default_rng(0), 400
    found = [
        refuted(residuals(factor * noise(STATED, rng, runs=4, dimension=8), STATED, false_alarm=LEVEL))
        for _ in range(audits)
    ]
    for test, probability in by_test(factor, **SHAPE, false_alarm=LEVEL).items():
        share = np.mean([test in tests for tests in found])
        slack = 4 * np.sqrt(max(probability * (1 - probability), 0.002) / audits)
        if test == residual.TAILS:  # the surest of its tests by itself: a lower bound
            assert share >= probability - slack
        else:
            assert share == pytest.approx(probability, abs=slack), test


def test_fifty_runs_find_a_factor_of_958_in_the_noise_of_the_scenes():
    found = by_test(0.958, runs=50, epochs=2, rounds=3, coordinates=256)
    assert found[residual.VARIANCE] > 1 - 1e-9
    assert found[residual.TAILS] > 0.99
    assert found[residual.BY_COORDINATE] < 0.01  # what a single coordinate cannot tell


def test_no_factor_is_found_no_more_often_than_the_false_alarm():
    assert sum(by_test(1.0, **SHAPE).values()) <= residual.FALSE_ALARM


def test_more_runs_find_more_and_a_factor_above_one_is_found_too():
    few, many = (by_test(0.9, **{**SHAPE, "runs": runs})[residual.VARIANCE] for runs in (5, 50))
    assert few < many
    assert by_test(1.1, **{**SHAPE, "runs": 200})[residual.VARIANCE] > 0.99


def test_a_factor_that_is_none_is_refused():
    with pytest.raises(SettingError, match="factor is 0"):
        power(0.0, **SHAPE)
