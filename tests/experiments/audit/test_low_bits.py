"""Attacks on the low bits of what is released: who knows all other clients must not tell whether a client took part.

Each statistic is standard normal for an attacker who guesses the known sum wrong, and for one who guesses it right where the noise
is private to its last bit. On rows of float32 a right guess leaves the lattice on which they were drawn, many deviations
away. Both worlds are tried: the client takes part, or does not; the guess is right or wrong.
"""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from audit.noise_faults import ESCAPES
from fedmf.counting import continual_counter
from fedmf.mechanisms.noise import NoiseRow, released
from fedmf.normals import STEP
from fedmf.randomness import SecretKey
from plans import random_vector, small_plan
from server.state import begin_epoch, first_state, make_release, secrets_at

D = 1 << 15
FLOAT32_ROWS = next(one for one in ESCAPES if one.name == "float32 rows").patches
FALSE_ALARM, FOUND = 5, 30  # standard deviations
worlds = pytest.mark.parametrize("takes_part", [True, False])
broken_or_not = pytest.mark.parametrize("patches", [nullcontext, FLOAT32_ROWS], ids=["whole", "float32"])


def angle_statistic(noise):
    """Return how near the angles of pairs lie to the 2^24 that there were: `noise` (d,) in standard deviations."""
    x, y = noise.reshape(2, -1)
    phase = np.arctan2(y, x) / (2 * np.pi) * 2**24 - 0.5
    return float(np.cos(2 * np.pi * phase).sum() / np.sqrt(len(phase) / 2))


def grid_statistic(noise, total, sigma):
    """Return how near `noise` (d,) lies to numbers of float32, as far as rounding of the release lets it be seen.

    Mironov 2012: a sum S + sigma z of a float z is found among the numbers that such a z can make of S.
    """
    grid = np.spacing(np.abs(noise).astype(np.float32)).astype(np.float64)
    rounding = np.spacing(np.abs(total + sigma * noise).astype(np.float32)).astype(np.float64)
    weight = np.sinc(rounding / (sigma * grid))
    return float((weight * np.cos(2 * np.pi * noise / grid)).sum() / np.sqrt((weight**2).sum() / 2))


def check(statistic, sums, takes_part, patches):
    """Compare both guesses with the limits: on broken noise the right one must be found, the wrong one is less right."""
    found, other = (abs(statistic(sums[guess])) for guess in (takes_part, not takes_part))
    if patches is nullcontext:
        assert max(found, other) < FALSE_ALARM
    else:
        assert found > max(FOUND, 2 * other)


@broken_or_not
@worlds
def test_one_release_tells_nothing_by_its_low_bits(takes_part, patches):
    """The releases of three rounds, times C, are the fresh row of the third: known sums of zero but for its own."""
    of_rows = {"rotation": "identity", "keep_probability": 1, "noise_multiplier": 1.9, "family": "optimal"}
    plan = small_plan(dimension=D, **of_rows)
    state = begin_epoch(plan, first_state(plan, np.zeros(D, np.float32), SecretKey.generate()))
    others = sum(random_vector(D, 1.0, k).astype(float) for k in range(2))
    sums, sigma = (others, others + random_vector(D, 1.0, 9)), plan.sigma_in(0)
    encoder = plan.factorization.epochs[0].stream.materialize_strategy()
    rows = []
    with patches():
        for step in range(3):
            total = np.zeros(D) if step == 1 else sums[takes_part].copy()
            release, secrets = make_release(plan, state, total, [])
            state = replace(state, round=step + 1, secrets=secrets_at(plan, secrets, step + 1))
            rows.append(release.noisy_sum.astype(float))
    scale = sigma * plan.factorization.epochs[0].stream.own(0)
    check(lambda known: angle_statistic((rows[0] - known) / scale), sums, takes_part, patches)
    check(lambda known: grid_statistic((rows[0] - known) / scale, known, scale), sums, takes_part, patches)
    rows[0] -= sums[takes_part]
    fresh = lambda known: encoder[2, :3] @ np.array([rows[0], rows[1], rows[2] - known]) / sigma  # noqa: E731
    check(lambda known: angle_statistic(fresh(known)), sums, takes_part, patches)


@broken_or_not
def test_a_counter_does_not_tell_one_number_by_its_low_bits(patches):
    """Epsilon 0.01, one number of 0 or 1, one release: read off in 300 of 300 before, now as often as a coin."""
    counter, rng = continual_counter(8, epsilon=0.01, delta=1e-9), np.random.default_rng(0)
    scale = counter.noise_multiplier * counter.factorization.sensitivity * counter.factorization.stream.own(0)
    right = 0
    with patches():
        for _ in range(300):
            truth = int(rng.integers(2))
            out, _ = counter.feed(truth, counter.start(key=SecretKey.generate()))
            noise = (out[0] - np.array([0.0, 1.0])) / scale
            distance = np.abs(noise / np.spacing(np.abs(noise).astype(np.float32)) % 1 - 0.5)
            right += int(distance.argmax()) == truth
    assert right < 200 if patches is nullcontext else right > 295


@pytest.mark.parametrize("own", [1.0, 1.37, 0.73])
def test_every_half_integer_moves_a_release_by_one_step_of_the_lattice(own):
    """Were the fresh number multiplied or added before rounding, points would be left out or meet (730 for 1000)."""
    row = NoiseRow(np.full(2000, 2.0**44 * 0.3), own, np.arange(2000) + 0.5)
    for total in (0.0, 1e-13, 0.5, 3.456, -10.0):
        places = released(np.full(2000, total), row, 1.7, np.float64) / (1.7 * own * STEP)
        # A place below 2^48 is divided again to within a sixteenth of a step.
        np.testing.assert_allclose(np.diff(places), 1.0, atol=0.13)
        np.testing.assert_allclose(places % 1, 0.5, atol=0.13)
