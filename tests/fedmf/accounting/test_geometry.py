"""L_inf-CSGM, epsilon from the L-infinity bound alone: against brute force, in plans and in statements."""

import itertools
import math

import numpy as np
import pytest

from fedmf.accounting import privacy_spent, rdp
from plans import KEY, linf_event, small_plan, stated
from server.state import first_state, make_release

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


@pytest.mark.parametrize(("gamma", "order"), [(0.3, 2.5), (1.0, 2.0)])
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


BASELINE = {"geometry": "linf", "family": "independent", "keep_probability": 0.1, "delta": 1e-4}


@pytest.mark.parametrize("value_type", ["float32", "int8"])
@pytest.mark.parametrize(("rotation", "coordinates"), [("hadamard", 64), ("identity", 50)])
@pytest.mark.parametrize("family", ["independent", "binary_tree"])
def test_sigma_over_the_bound_of_a_coordinate_is_what_the_mechanism_costs(
    family: str, rotation: str, coordinates: int, value_type: str
) -> None:
    """A mask chooses from the padded coordinates, each of which may be at the bound; so many compose."""
    plan = small_plan(**{**BASELINE, "family": family}, epsilon=2.0, noise_multiplier=None, rotation=rotation,
                      value_type=value_type, linf_norm=0.3, l2_norm=0.9)  # fmt: skip
    sensitivity = plan.factorization.epochs[0].sensitivity
    event = linf_event(
        noise_over_linf=plan.sigma / (sensitivity * 0.3), keep_probability=0.1, coordinates=coordinates
    )
    spent = privacy_spent(event, 2, delta=1e-4)
    assert spent.epsilon == pytest.approx(2.0, rel=1e-6)
    assert plan.spent().epsilon == pytest.approx(spent.epsilon, rel=1e-9)
    assert plan.spent().epsilon <= 2.0
    assert plan.start_epoch(first_state(plan, np.zeros(50, "f4"), KEY).ledger).entries[0] == plan.epoch_event


def test_the_released_noise_is_as_large_as_the_statement_says() -> None:
    plan = small_plan(**BASELINE, noise_multiplier=2.0, dimension=4096, linf_norm=0.1)
    state = first_state(plan, np.zeros(4096, "f4"), KEY)
    noise = make_release(plan, state, np.zeros(plan.rotation.padded), [])[0].noisy_sum
    sigma = stated(plan, 1).sigma
    assert sigma == pytest.approx(2.0 * 0.1 * 64)
    # Of 4096 numbers the standard deviation is within 5 of its own deviations, 1/sqrt(8192) each.
    assert np.std(noise) == pytest.approx(sigma, rel=5 / math.sqrt(8192))


def test_the_radius_counted_is_that_of_all_coordinates_at_the_bound() -> None:
    given = {"l2_norm": 2.0, "linf_norm": 0.25, "dimension": 1024}
    assert (small_plan(**given).counted_radius, small_plan(**given).linf_over_l2) == (2.0, 0.125)
    counted = small_plan(**given, geometry="linf")
    assert counted.counted_radius == np.linalg.norm(np.full(1024, 0.25)) == 8.0
    assert counted.linf_over_l2 == 0.25 / 8.0
    for geometry in ("l2", "linf"):
        assert small_plan(l2_norm=None, noise_multiplier=0.0, geometry=geometry).counted_radius is None


def test_the_statement_says_that_the_linf_bound_alone_counts_and_what_sigma_is_relative_to() -> None:
    said = stated(small_plan(**BASELINE, l2_norm=0.9, linf_norm=0.3))
    assert (said.geometry, said.coordinates, said.l2_norm, said.linf_norm) == ("linf", 64, 0.9, 0.3)
    assert said.ratio == pytest.approx(64)
    assert said.sigma == pytest.approx(said.noise_multiplier * math.sqrt(64) * 0.3)
    text = said.paragraph()
    for words in ("from the L-infinity bound alone: all 64 coordinates", "an L2 norm of 2.4", "L_inf-CSGM"):
        assert words in text, words
    for changes in ({"geometry": "l2"}, {"noise_multiplier": 0.0}):
        assert "L-infinity bound alone" not in stated(small_plan(**{**BASELINE, **changes})).paragraph()
