"""The covariance as a whole: bounds that hold, and directions that are found though no coordinate or pair shows them."""

import numpy as np
import pytest
from scipy.stats import kstest

from audited_laws import named, refuted
from fedmf.audit import Stated, residual, residuals
from fedmf.audit.spectrum import direction_tests, largest_eigenvalue, smallest_eigenvalue

FLAT = Stated.of_strategy(np.eye(3), sigma=1.0, l2_norm=1.0, epochs=2)
LEVEL = 1e-6 / 18  # of a scene in a default audit
HONEST = 4000


def drawn(seed=0, runs=50, d=256):
    return np.random.default_rng(seed).normal(size=(runs, 2, 3, d))


def without(values, directions, scale=0.0):
    """Noise scaled by `scale` along that many public directions."""
    basis, _ = np.linalg.qr(np.random.default_rng(7).normal(size=(values.shape[-1], directions)))
    return values - (1 - scale) * (values @ basis) @ basis.T


@pytest.mark.parametrize(("rows", "p"), [(1, 1), (5, 1), (5, 5), (12, 4), (30, 24), (40, 30), (60, 52)])
def test_the_bound_on_the_smallest_eigenvalue_is_kept_and_near(rows, p):
    """A level of .01, .1, .3 is exceeded no more often than that; for few spare rows hardly less often."""
    matrices = np.random.default_rng(rows).normal(size=(HONEST, rows, p))
    smallest = np.linalg.svd(matrices, compute_uv=False)[:, -1] ** 2
    p_values = smallest_eigenvalue(smallest, rows, p)
    for level in (0.01, 0.1, 0.3):
        share = np.mean(p_values <= level)
        assert share <= level + 4 * (level * (1 - level) / HONEST) ** 0.5
        assert share >= level / 5
    if p == 1:
        assert kstest(p_values, "uniform").pvalue > 1e-3


@pytest.mark.parametrize(("rows", "p"), [(400, 4), (300, 20), (100, 50)])
def test_the_bounds_of_davidson_and_szarek_hold_on_both_sides(rows, p):
    matrices = np.random.default_rng(p).normal(size=(500, rows, p))
    sizes = np.linalg.svd(matrices, compute_uv=False) ** 2
    for level in (0.01, 0.1, 0.5):
        assert np.mean(smallest_eigenvalue(sizes[:, -1], rows, p) <= level) <= level
        assert np.mean(largest_eigenvalue(sizes[:, 0], rows, p) <= level) <= level


def test_far_from_zero_the_bounds_are_the_printed_formula():
    low, high = 6000**0.5 - 256**0.5 - 4, 6000**0.5 + 256**0.5 + 4
    assert smallest_eigenvalue(np.array(low**2), 6000, 256) == pytest.approx(np.exp(-8))
    assert largest_eigenvalue(np.array(high**2), 6000, 256) == pytest.approx(np.exp(-8))


@pytest.mark.parametrize("shape", [(3, 2, 3, 8), (25, 2, 3, 4), (4, 1, 2, 30), (12, 2, 1, 5)])
def test_a_thousand_honest_streams_fall_below_a_large_level_no_more_often_than_it(shape):
    rng, alarms, volumes = np.random.default_rng(3), [], []
    for _ in range(1000):
        tests = direction_tests(rng.normal(size=shape), 0.0)
        alarms.append(sum(count for _, _, count in tests) * min(tests)[0])
        volumes += [p for p, name, _ in tests if name == "coordinates, the volume of their noise"]
    for level in (0.05, 0.3):
        assert np.mean(np.array(alarms) <= level) <= level + 4 * (level / 1000) ** 0.5
    assert kstest(volumes, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("directions", [1, 8, 25, 50])
def test_directions_without_noise_are_found_from_fifty_runs_of_256_coordinates(directions):
    values = without(drawn(), directions)
    values *= (256 / (256 - directions)) ** 0.5  # nothing is missing in all
    found = residuals(values, FLAT, false_alarm=LEVEL)
    assert residual.DIRECTIONS in refuted(found)
    assert refuted(found) <= {residual.DIRECTIONS, residual.SPREAD}
    where = "coordinates 0 to 255, the direction with the least noise"
    assert named(found, residual.DIRECTIONS).where == where


def test_one_direction_with_less_noise_is_found_from_the_size_that_the_docs_say():
    """From 50 runs 300 rows are hardly more than 256: a twentieth is found, a fifth is not; from 1000 runs a half is."""
    for runs, scale, is_found in ((50, 0.05, True), (50, 0.2, False), (1000, 0.5, True), (1000, 0.9, False)):
        tests = direction_tests(without(drawn(runs=runs), 1, scale), 0.0)
        share = LEVEL / len(residual.TESTS) / sum(count for _, _, count in tests)
        assert (min(tests)[0] <= share) is is_found


def test_many_directions_with_half_of_their_noise_are_found_by_their_volume():
    values = without(drawn(), 40, 0.5)
    p_value, name, _ = min(direction_tests(values, 0.0))
    assert p_value < 1e-12
    assert name == "coordinates, the volume of their noise"


def permuted_row(values):
    values[:, :, 2] = values[:, :, 0][..., np.random.default_rng(1).permutation(values.shape[-1])]
    return values


def turned_epoch(values):
    basis, _ = np.linalg.qr(np.random.default_rng(2).normal(size=(values.shape[-1],) * 2))
    values[:, 1] = values[:, 0] @ basis
    return values


def turned_row(values):
    basis, _ = np.linalg.qr(np.random.default_rng(2).normal(size=(values.shape[-1],) * 2))
    values[:, :, 2] = values[:, :, 0] @ basis
    return values


def turned_row_of_another_epoch(values):
    basis, _ = np.linalg.qr(np.random.default_rng(2).normal(size=(values.shape[-1],) * 2))
    values[:, 1, 2] = values[:, 0, 0] @ basis
    return values


@pytest.mark.parametrize("fault", [permuted_row, turned_row, turned_epoch, turned_row_of_another_epoch])
def test_rows_that_are_public_maps_of_each_other_are_found_in_few_coordinates_from_fifty_runs(fault):
    values = fault(drawn(d=6))
    assert residual.DIRECTIONS in refuted(residuals(values, FLAT, resolution=1e-5, false_alarm=LEVEL))


@pytest.mark.parametrize(
    ("fault", "runs", "is_found"),
    [
        (permuted_row, 50, True),
        (turned_epoch, 50, True),
        (turned_row, 50, False),
        (turned_row, 100, True),
        (turned_row_of_another_epoch, 100, False),
    ],
)
def test_rows_that_are_public_maps_of_each_other_are_found_in_256_coordinates_as_the_docs_say(
    fault, runs, is_found
):
    """A block that holds a coordinate and the one that it returns as suffices; of rotations the volume of all blocks tells."""
    tests = direction_tests(fault(drawn(runs=runs)), 1e-5)
    share = LEVEL / len(residual.TESTS) / sum(count for _, _, count in tests)
    assert (min(tests)[0] <= share) is is_found


def test_a_block_of_coordinates_is_looked_at_where_there_are_fewer_rows_than_coordinates():
    values = drawn(runs=4, d=3000)
    values[..., 605] = values[..., [600, 601, 602, 603]].sum(axis=-1) / 2
    p_value, name, count = min(direction_tests(values, 0.0))
    assert p_value < 1e-20
    assert name == "coordinates 600 to 611, the direction with the least noise"
    assert count == 250


def test_noise_that_all_coordinates_share_is_found_as_the_direction_with_the_most():
    values = drawn()
    values = (1 - 0.2**2) ** 0.5 * values + 0.2 * np.random.default_rng(5).normal(size=(50, 2, 3, 1))
    found = [test for test in direction_tests(values, 0.0) if "most" in test[1]]
    assert min(found)[0] < 1e-12


def test_the_error_of_values_counts_for_them():
    """A direction of which no more is known than the error of float32 is no stronger evidence than that error."""
    values = without(drawn(), 1)
    exact_one, known_to = (min(direction_tests(values, error))[0] for error in (0.0, 1e-3))
    assert exact_one < 1e-100 < known_to < 1e-12
