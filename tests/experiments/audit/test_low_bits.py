"""Attacks on the low bits of what is released: who knows all other clients must not tell whether a client took part.

Each statistic is standard normal for an attacker who guesses the known sum wrong, and for one who guesses it right where the noise
is private to its last bit. On rows of float32 a right guess leaves the lattice on which they were drawn, many deviations
away. Both worlds are tried: the client takes part, or does not; the guess is right or wrong.
"""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from audit.sabotages import ESCAPES
from experiments import run
from fedmf.counting import continual_counter
from fedmf.mechanisms.noise import NoiseRow, released
from fedmf.normals import STEP
from fedmf.randomness import SecretKey
from plans import random_vector, small_plan
from server.checkpoint import Checkpoint
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


def scene(*, steps=0, sigma=1.5, mechanism="independent"):
    """Return plan, state before round `steps` + 1, and the sums of that round with and without the client."""
    plan = small_plan(
        dimension=D, rotation="identity", keep_probability=1, noise_multiplier=sigma, family=mechanism
    )
    state = begin_epoch(plan, first_state(plan, np.zeros(D, np.float32), SecretKey.generate()))
    others = sum(random_vector(D, 1.0, k).astype(float) for k in range(2))
    return plan, state, (others, others + random_vector(D, 1.0, 9))


@broken_or_not
@worlds
@pytest.mark.parametrize("statistic", ["angles", "grid"])
def test_one_release_tells_nothing_by_its_low_bits(takes_part, patches, statistic):
    plan, state, sums = scene()
    with patches():
        release, _ = make_release(plan, state, sums[takes_part].copy(), [])
    sigma = plan.sigma_in(0)

    def of(known):
        noise = (release.noisy_sum.astype(float) - known) / sigma
        return angle_statistic(noise) if statistic == "angles" else grid_statistic(noise, known, sigma)

    check(of, sums, takes_part, patches)


@broken_or_not
@worlds
def test_later_rounds_tell_nothing_through_the_inverse_of_the_mechanism(takes_part, patches):
    """The releases of three rounds, times C, are the fresh row of the third: known sums of zero but for its own."""
    plan, state, sums = scene(mechanism="optimal", sigma=1.9)
    encoder = plan.factorization.epochs[0].stream.materialize_strategy()
    rows = []
    with patches():
        for step in range(3):
            total = sums[takes_part].copy() if step == 2 else np.zeros(D)
            release, secrets = make_release(plan, state, total, [])
            state = replace(state, round=step + 1, secrets=secrets_at(plan, secrets, step + 1))
            rows.append(release.noisy_sum.astype(float))

    def of(known):
        noise = encoder[2, :3] @ np.array([rows[0], rows[1], rows[2] - known]) / plan.sigma_in(0)
        return angle_statistic(noise)

    check(of, sums, takes_part, patches)


OVERRIDES = [
    "dataset=by_user_npz", "model=mlp", "population.rounds_per_epoch=1", "population.epochs=1", "clipping.linf_norm=0.05",
    "compression.keep_probability=1", "seed=5", "mechanism=independent", "run.evaluations=1",
    "client.learning_rate=0.1",
]  # fmt: skip


def first_release(*overrides):
    """Run, and return the noisy sum of the first round as it was committed."""
    found = []

    def commit(checkpoint, release, real=Checkpoint.commit):
        found.append(release.noisy_sum.astype(float))
        real(checkpoint, release)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Checkpoint, "commit", commit)
        run(*OVERRIDES, *overrides)
    return found[0]


@pytest.fixture(scope="module")
def cohorts(tmp_path_factory):
    """Return a data set of 64 clients, one without the last of them, and the exact sum that each cohort sends."""
    folder, rng, sums = tmp_path_factory.mktemp("clients"), np.random.default_rng(0), []
    x, y = rng.random((256, 64), dtype=np.float32), rng.integers(10, size=256)
    user = np.concatenate([np.repeat(np.arange(64), 3), rng.integers(63, size=64)])
    split = np.repeat([0, 1], [192, 64])
    files = [folder / "without.npz", folder / "all.npz"]
    for file, clients in zip(files, (63, 64), strict=True):
        here = user < clients
        np.savez(file, x=x[here], y=y[here], user=user[here], split=split[here])
        own = (
            f"dataset.path={file}",
            f"population.cohort_size={clients}",
            f"run.directory={folder}/{file.stem}",
        )
        sums.append(first_release(*own, "privacy.epsilon=null", "privacy.noise_multiplier=0"))
    return folder, files, sums


@broken_or_not
@worlds
def test_a_private_run_tells_nothing_of_a_client(cohorts, takes_part, patches):
    """Epsilon 0.5, 64 clients, all coordinates sent: 110 deviations before the noise was whole."""
    folder, files, sums = cohorts
    directory = folder / f"private-{takes_part}-{patches is nullcontext}"
    own = (f"dataset.path={files[takes_part]}", f"population.cohort_size={63 + takes_part}")
    with patches():
        noisy = first_release(*own, "privacy.epsilon=0.5", f"run.directory={directory}")
    sigma = run.load(directory).summary["sigma"]
    even = len(noisy) // 2 * 2
    check(lambda known: angle_statistic((noisy - known)[:even] / sigma), sums, takes_part, patches)


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


def test_what_a_client_adds_to_a_release_does_not_depend_on_the_fresh_row():
    """Two worlds, one key: R(S + g) - R(S) is the difference of two rounded means, whole whatever was drawn."""
    rng = np.random.default_rng(1)
    total, more, mean = rng.normal(size=(3, 4096))
    differences = []
    for _ in range(3):
        row = NoiseRow(mean / STEP, 1.3, rng.integers(-(2**47), 2**47, 4096) + 0.5)
        both = [released(known, row, 1.7, np.float64) / (1.7 * 1.3 * STEP) for known in (total, total + more)]
        differences.append(np.rint(both[1] - both[0]))
    np.testing.assert_array_equal(differences[0], differences[1])
    np.testing.assert_array_equal(differences[0], differences[2])
