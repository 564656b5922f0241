"""Cohorts that share no client, and the permutation that draws them."""

import hashlib
import math
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import chi2

from fedmf.errors import ParticipationError
from fedmf.participation import (
    SHUFFLED,
    Participation,
    draw_cohort,
    permuted,
    rounds_that_fit,
)
from fedmf.randomness import PublicSeed

UNLIKELY = 1e-6  # the keys are fixed, so that a test passes always or never


def whole_epoch(clients, cohort_size, rounds, *, epoch, seed):
    steps = range(rounds)
    return [
        draw_cohort(clients, cohort_size, epoch=epoch, step=step, seed=PublicSeed(seed)) for step in steps
    ]


@given(st.data())
@settings(max_examples=200)
def test_cohorts_of_an_epoch_are_disjoint(data):
    clients = data.draw(st.integers(1, 300))
    cohort_size = data.draw(st.integers(1, clients))
    rounds = data.draw(st.integers(1, clients // cohort_size))
    drawn = np.stack(whole_epoch(clients, cohort_size, rounds, epoch=data.draw(st.integers(0, 5)), seed=1))
    assert drawn.shape == (rounds, cohort_size)
    assert len(np.unique(drawn)) == drawn.size
    assert 0 <= drawn.min() <= drawn.max() < clients


@pytest.mark.parametrize("clients", [SHUFFLED, SHUFFLED + 1, 70_001])
def test_a_whole_epoch_of_many_clients_asks_each_at_most_once(clients):
    asked = np.concatenate(whole_epoch(clients, 1000, clients // 1000, epoch=3, seed=2))
    assert len(np.unique(asked)) == len(asked) == clients // 1000 * 1000
    assert 0 <= asked.min() <= asked.max() < clients


def test_too_many_rounds_names_the_largest_that_fits():
    with pytest.raises(
        ParticipationError,
        match=r"largest rounds_per_epoch that fits is 22, .*cohort_size that fits is 62",
    ):
        rounds_that_fit(1437, 64, 23)
    with pytest.raises(ParticipationError, match="at most 10 fits"):
        rounds_that_fit(10, 11)
    with pytest.raises(ParticipationError, match="6 disjoint cohorts of 2 need 12 clients, but there are 10"):
        Participation(10, 2, 6, 3)
    assert rounds_that_fit(1437, 64, 22) == 22
    assert Participation(10, 2, 5, 3).rounds == 15


@pytest.mark.parametrize(("epoch", "seed"), [(2, 5), (3, 5), (2, 6)])
def test_up_to_a_limit_the_order_is_the_shuffle_that_published_numbers_were_made_with(epoch, seed):
    cohorts = whole_epoch(3400, 100, 34, epoch=epoch, seed=seed)
    order = PublicSeed(seed).generator("cohorts", epoch).permutation(3400)
    np.testing.assert_array_equal(np.concatenate(cohorts), order)
    cohorts[0][:] = 0  # a caller's array is its own
    np.testing.assert_array_equal(whole_epoch(3400, 100, 1, epoch=epoch, seed=seed)[0], order[:100])


@pytest.mark.parametrize("clients", [10**7, 10**9])
def test_a_round_of_any_number_of_clients_takes_no_more_memory_than_its_cohort(clients):
    whole_epoch(clients, 1000, 1, epoch=0, seed=1)  # what is imported once is there
    tracemalloc.start()
    assert len(draw_cohort(clients, 1000, epoch=1, step=clients // 1000 - 1, seed=PublicSeed(1))) == 1000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300_000
    with pytest.raises(AssertionError):
        draw_cohort(clients, 1000, epoch=1, step=clients // 1000, seed=PublicSeed(1))


# The permutation


def named(numbers, size, key=0):
    return permuted(numbers, size, hashlib.sha256(f"{size} {key}".encode()).digest())


def likelihood(seen):
    """Return the p-value of counts (cells,) that should be equal."""
    expected = seen.mean()
    return chi2.sf(((seen - expected) ** 2 / expected).sum(), seen.size - 1)


def test_every_key_permutes_every_small_domain():
    for size in (*range(1, 66), 127, 128, 129, 1000):
        for key in range(3):
            assert sorted(named(np.arange(size), size, key).tolist()) == list(range(size)), size


@pytest.mark.long
@pytest.mark.parametrize(("size", "keys"), [(2, 500), (3, 1500), (4, 2000), (5, 4000)])
def test_all_arrangements_of_a_small_domain_are_equally_frequent(size, keys):
    seen = Counter(named(np.arange(size), size, key).tobytes() for key in range(keys))
    counts = np.array([*seen.values(), *[0] * (math.factorial(size) - len(seen))])
    assert likelihood(counts) > UNLIKELY


@pytest.mark.parametrize("apart", [1, 317, 50_000])
def test_under_one_key_pairs_at_any_distance_are_spread_evenly(apart):
    """317 is the side of the square."""
    size, strips = 100_003, 32
    images = named(np.arange(size), size) * strips // size
    pairs = strips * images[:-apart] + images[apart:]
    assert likelihood(np.bincount(pairs, minlength=strips**2)) > UNLIKELY


@pytest.mark.parametrize("size", [10**9, 10**12 + 39, 2**62])
def test_images_of_a_huge_domain_are_within_it_and_differ(size):
    images = named(np.arange(size - 100_000, size), size)
    assert 0 <= images.min() <= images.max() < size
    assert len(np.unique(images)) == 100_000
    assert likelihood(np.bincount((images.astype(float) / size * 64).astype(int), minlength=64)) > UNLIKELY


def test_images_are_those_of_every_machine_and_version_and_of_whatever_else_is_asked():
    """Another order would ask clients a second time when a run is resumed in mid-epoch."""
    assert permuted(np.arange(3), 10**9, bytes(range(32))).tolist() == [713965599, 174773050, 779038638]
    numbers = np.random.default_rng(0).integers(10**9, size=300)
    alone = [int(named(numbers[k : k + 1], 10**9)[0]) for k in range(300)]
    assert alone == named(numbers, 10**9).tolist()
