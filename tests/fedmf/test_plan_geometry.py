"""Plans and statements of L_inf-CSGM: the noise is that of all coordinates at the bound, and it is said."""

import math

import numpy as np
import pytest

from fedmf.accounting import linf_event, privacy_spent
from fedmf.conduct import Conduct, write_statement
from fedmf.errors import SettingError
from fedmf.outlook import noise_of_run
from plans import KEY, small_plan
from server.state import first_state, make_release

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
    stated = write_statement(plan, Conduct(epochs=1, reproducible=False)).sigma
    assert stated == pytest.approx(2.0 * 0.1 * 64)
    # Of 4096 numbers the standard deviation is within 5 of its own deviations, 1/sqrt(8192) each.
    assert np.std(noise) == pytest.approx(stated, rel=5 / math.sqrt(8192))


def test_what_clients_enforce_and_send_is_the_same_and_only_the_noise_is_more() -> None:
    plain, counted = (small_plan(**{**BASELINE, "geometry": geometry}) for geometry in ("l2", "linf"))
    assert plain.client_plan == counted.client_plan
    assert plain.bounds == counted.bounds
    assert (plain.denominator, plain.value_bytes) == (counted.denominator, counted.value_bytes)
    assert counted.sigma > plain.sigma


def test_noise_over_signal_counts_the_larger_noise() -> None:
    """At one sigma both runs have the same noise in the model."""
    plain = small_plan(**{**BASELINE, "geometry": "l2"}, noise_multiplier=1.0)
    counted = small_plan(**BASELINE)
    counted = counted.with_noise_multiplier(plain.sigma / counted.with_noise_multiplier(1.0).sigma)
    assert counted.sigma == pytest.approx(plain.sigma, rel=1e-12)
    assert counted.noise_multiplier < plain.noise_multiplier
    assert noise_of_run(counted) == pytest.approx(noise_of_run(plain), rel=1e-9)


def test_the_statement_says_that_the_linf_bound_alone_counts_and_what_sigma_is_relative_to() -> None:
    plan = small_plan(**BASELINE, l2_norm=0.9, linf_norm=0.3)
    said = write_statement(plan, Conduct(epochs=2, reproducible=False))
    assert (said.geometry, said.coordinates, said.l2_norm, said.linf_norm) == ("linf", 64, 0.9, 0.3)
    assert said.ratio == pytest.approx(64)
    assert said.sigma == pytest.approx(said.noise_multiplier * math.sqrt(64) * 0.3)
    text = said.paragraph()
    for words in ("from the L-infinity bound alone: all 64 coordinates", "an L2 norm of 2.4", "L_inf-CSGM"):
        assert words in text, words


@pytest.mark.parametrize("changes", [{"geometry": "l2"}, {"noise_multiplier": 0.0}])
def test_other_statements_say_nothing_of_it(changes: dict[str, object]) -> None:
    plan = small_plan(**{**BASELINE, **changes})
    assert (
        "L-infinity bound alone"
        not in write_statement(plan, Conduct(epochs=2, reproducible=False)).paragraph()
    )


def test_an_unknown_geometry_is_refused() -> None:
    with pytest.raises(SettingError, match="geometry is 'l1'; it must be one of l2, linf"):
        small_plan(geometry="l1")


def test_epochs_of_one_round_are_an_event_a_round() -> None:
    """L2-CSGM without epochs: a client may be in every cohort, so every round counts for it."""
    plan = small_plan(family="independent", rounds_per_epoch=1, epochs=9, keep_probability=0.1, linf_norm=0.2)
    assert plan.sigma == plan.noise_multiplier
    spent = privacy_spent(plan.epoch_event, 9, delta=1e-5, precision=plan.precision)
    assert plan.spent() == spent
    text = write_statement(plan, Conduct(epochs=9, reproducible=False)).paragraph()
    assert "9 of 9 planned epochs started, each of 1 round with 3 of 12 clients" in text
