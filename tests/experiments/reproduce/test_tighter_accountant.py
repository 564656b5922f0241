"""The table of the quadratic-variation bound, computed again."""

import pytest

from experiments.reproduce.tighter_accountant import EXPECTED, TARGETS, at_the_noise_of, reproduce


@pytest.mark.parametrize("epochs", [1, 16])
def test_what_the_bound_saves_at_the_noise_of_epsilon_two_is_as_derived(epochs):
    for gamma in (1.0, 0.03, 0.01):
        wanted = EXPECTED[epochs, gamma][TARGETS.index(2.0)]
        assert at_the_noise_of(2.0, gamma, epochs).epsilon == pytest.approx(wanted, abs=1e-4)


@pytest.mark.slow
def test_the_whole_table_agrees_as_far_as_the_noise_does(tmp_path):
    """At keep probability 1 only the calibration can differ; no other row may differ by more than it does."""
    result = reproduce(tmp_path, "small")
    rows = result.tables[0].rows
    by_calibration = max(abs(row[5]) for row in rows if row[1] == 1.0)
    assert result.worst_relative_error <= by_calibration + 1e-4 < 1e-3
    assert len(rows) == 33
    assert (tmp_path / "tighter_accountant.png").read_bytes().startswith(b"\x89PNG")
