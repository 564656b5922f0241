"""L_inf-CSGM: epsilon from the L-infinity bound alone, against brute force and numbers of forty digits."""

import itertools
import math

import numpy as np
import pytest

from fedmf.accounting import (
    EpochEvent,
    counted_radius,
    counted_ratio,
    gaussian_epsilon,
    linf_event,
    privacy_spent,
    rdp,
)
from fedmf.errors import SettingError

# (order, gamma, kappa_inf / sigma, f of one coordinate), by arithmetic of fifty digits.
ONE_COORDINATE = [
    (2, 0.01, 0.2, 4.081069091665028620765902993850528618757e-6),
    (16, 0.01, 0.11870152754146054, 1.137430754725445985165502963925695730764e-5),
    (6, 0.05, 0.5, 0.002264064285196278218418720396223093011586),
    (4.75, 0.01, 0.11870152754146054, 3.371380179123301252622168160644757061526e-6),
    (16, 1, 0.0011870152754146054, 1.127204211254089354254960517730699582493e-5),
]


def brute_force(values: list[float], gamma: float, sigma: float, order: float) -> float:
    """Divergence of the released vector with a client over the one without, on a grid, mask by mask.

    Nothing of the theorem: a mixture over all masks of the client's vector `values` (2,), not a product.
    """
    x = np.linspace(-12, 16, 1401) * sigma
    at = np.stack(np.meshgrid(x, x, indexing="ij"), -1)
    cell = (x[1] - x[0]) ** 2 / (2 * np.pi * sigma**2)

    def density(mean: list[float]) -> np.ndarray:
        return np.exp(-((at - mean) ** 2).sum(-1) / (2 * sigma**2)) * cell

    without = density([0.0, 0.0])
    with_it = np.zeros_like(without)
    for mask in itertools.product([0, 1], repeat=2):
        chance = math.prod(gamma if kept else 1 - gamma for kept in mask)
        with_it += chance * density([kept * value for kept, value in zip(mask, values, strict=True)])
    return float(np.log((with_it**order * without ** (1 - order)).sum()) / (order - 1))


@pytest.mark.parametrize("order", [2.0, 2.5])
@pytest.mark.parametrize("gamma", [0.3, 1.0])
def test_both_coordinates_at_the_bound_cost_exactly_what_is_counted_and_no_vector_costs_more(
    gamma: float, order: float
) -> None:
    sigma = 1.4
    counted = rdp(linf_event(noise_over_linf=sigma, keep_probability=gamma, coordinates=2), order)
    assert brute_force([1.0, -1.0], gamma, sigma, order) == pytest.approx(counted, rel=1e-9)
    for values in ([1.0, 0.7], [0.2, -1.0], [0.5, 0.5]):
        assert brute_force(values, gamma, sigma, order) < counted


@pytest.mark.parametrize(("order", "gamma", "signal", "one"), ONE_COORDINATE)
@pytest.mark.parametrize("coordinates", [1, 3, 50, 1 << 20, (1 << 20) - 1])
def test_every_coordinate_costs_the_published_number_of_one(
    order: float, gamma: float, signal: float, one: float, coordinates: int
) -> None:
    event = linf_event(noise_over_linf=1 / signal, keep_probability=gamma, coordinates=coordinates)
    # 1e-9: the numbers are exact; K is 1/linf_over_l2^2, whose rounding a remainder takes up.
    assert rdp(event, order) == pytest.approx(coordinates * one, rel=1e-9)


def test_without_masks_it_is_the_gaussian_of_all_coordinates_at_the_bound() -> None:
    event = linf_event(noise_over_linf=300.0, keep_probability=1.0, coordinates=4096)
    spent = privacy_spent(event, 3, delta=1e-6)
    assert spent.epsilon == spent.epsilon_exact
    assert spent.epsilon == pytest.approx(gaussian_epsilon(math.sqrt(3 * 4096) / 300, 1e-6), rel=1e-12)
    replaced = privacy_spent(event, 3, delta=1e-6, adjacency="replace")
    assert replaced.epsilon == pytest.approx(gaussian_epsilon(2 * math.sqrt(3 * 4096) / 300, 1e-6), rel=1e-12)


def test_at_equal_noise_it_costs_more_than_both_bounds_together() -> None:
    """Both describe one release, of sigma = 10 kappa_inf and 1024 coordinates, where kappa_2 = 6 kappa_inf."""
    counted = linf_event(noise_over_linf=10.0, keep_probability=0.1, coordinates=1024)
    both = EpochEvent(10 / 6, 0.1, 1 / 6)
    by_linf, by_both = (privacy_spent(event, 8, delta=1e-5).epsilon for event in (counted, both))
    assert by_linf > 4 * by_both
    assert rdp(counted, 8.0) == pytest.approx(1024 / 36 * rdp(both, 8.0), rel=1e-9)


def test_the_radius_counted_is_that_of_all_coordinates_at_the_bound() -> None:
    bounds = {"l2_radius": 2.0, "linf_norm": 0.25, "coordinates": 1024}
    assert counted_radius("l2", **bounds) == 2.0
    assert counted_radius("linf", **bounds) == np.linalg.norm(np.full(1024, 0.25)) == 8.0
    assert counted_ratio("l2", linf_over_l2=0.125, coordinates=1024) == 0.125
    assert counted_ratio("linf", linf_over_l2=0.125, coordinates=1024) == 0.25 / 8.0
    assert counted_radius("linf", l2_radius=2.0, linf_norm=None, coordinates=9) is None
    assert counted_radius("l2", l2_radius=None, linf_norm=None, coordinates=9) is None


def test_what_is_no_geometry_or_no_mechanism_is_refused() -> None:
    with pytest.raises(SettingError, match="geometry is 'l1'; it must be one of l2, linf"):
        counted_radius("l1", l2_radius=1.0, linf_norm=1.0, coordinates=2)
    with pytest.raises(SettingError, match="geometry is 'l1'"):
        counted_ratio("l1", linf_over_l2=1.0, coordinates=2)
    with pytest.raises(SettingError, match="coordinates is 0"):
        linf_event(noise_over_linf=1.0, keep_probability=0.1, coordinates=0)
    with pytest.raises(SettingError, match="noise_over_linf is -1"):
        linf_event(noise_over_linf=-1, keep_probability=0.1, coordinates=2)
