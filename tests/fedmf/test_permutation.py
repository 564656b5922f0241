"""A permutation evaluated where it is needed: a bijection whatever the key, and over keys like a uniform one."""

import hashlib
import math
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from scipy.stats import chi2

from fedmf.errors import SettingError
from fedmf.permutation import Permutation

pytestmark = pytest.mark.long

UNLIKELY = 1e-6  # the keys are fixed, so that a test passes always or never


def named(size, key):
    return Permutation(size, hashlib.sha256(f"{size} {key}".encode()).digest())


def likelihood(seen):
    """Return the p-value of counts (cells,) that should be equal."""
    expected = seen.mean()
    return chi2.sf(((seen - expected) ** 2 / expected).sum(), seen.size - 1)


def test_every_key_permutes_every_small_domain():
    for size in (*range(1, 66), 127, 128, 129, 1000):
        for key in range(3):
            images = named(size, key)(np.arange(size))
            assert sorted(images.tolist()) == list(range(size)), size


@pytest.mark.parametrize(
    ("size", "keys"), [(2, 500), (3, 1500), (4, 2000), pytest.param(5, 4000, marks=pytest.mark.long)]
)
def test_all_arrangements_of_a_small_domain_are_equally_frequent(size, keys):
    seen = Counter(named(size, key)(np.arange(size)).tobytes() for key in range(keys))
    counts = np.array([*seen.values(), *[0] * (math.factorial(size) - len(seen))])
    assert likelihood(counts) > UNLIKELY


@pytest.mark.parametrize("part", ["row", "column"])
def test_over_keys_two_neighbours_land_anywhere_independently(part):
    """Of the square of 317 x 317 that the network works on in 8 strips: all 64 pairs of strips are equally frequent."""
    side, strips = 317, 8
    images = np.array([named(side**2, key)(np.array([5, 6])) for key in range(2000)])
    pairs = (images // side if part == "row" else images % side) * strips // side
    assert likelihood(np.bincount(pairs @ [strips, 1], minlength=strips**2)) > UNLIKELY


@pytest.mark.parametrize("apart", [1, 317, 50_000])
def test_under_one_key_pairs_at_any_distance_are_spread_evenly(apart):
    """317 is the side of the square."""
    size, strips = 100_003, 32
    images = named(size, 0)(np.arange(size)) * strips // size
    pairs = strips * images[:-apart] + images[apart:]
    assert likelihood(np.bincount(pairs, minlength=strips**2)) > UNLIKELY


def test_an_image_does_not_depend_on_what_is_asked_with_it():
    permutation = named(10**9, 0)
    numbers = np.random.default_rng(0).integers(10**9, size=300)
    together = permutation(numbers)
    assert [int(permutation(numbers[k : k + 1])[0]) for k in range(300)] == together.tolist()


@pytest.mark.parametrize("size", [10**9, 10**12 + 39, 2**62])
def test_images_of_a_huge_domain_are_within_it_and_differ(size):
    images = named(size, 0)(np.arange(size - 100_000, size))
    assert 0 <= images.min() <= images.max() < size
    assert len(np.unique(images)) == 100_000
    assert likelihood(np.bincount((images.astype(float) / size * 64).astype(int), minlength=64)) > UNLIKELY


def test_a_thousand_images_take_the_same_memory_in_any_domain():
    peaks = []
    for size in (10**6, 10**12):
        permutation = named(size, 0)
        permutation(np.arange(1000))
        tracemalloc.start()
        permutation(np.arange(1000))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(peaks) < 200_000


def test_images_are_those_of_every_machine_and_version():
    """Another order would ask clients a second time when a run is resumed in mid-epoch."""
    assert Permutation(10**9, bytes(range(32)))(np.arange(3)).tolist() == [713965599, 174773050, 779038638]


def test_what_is_no_permutation_is_refused():
    with pytest.raises(SettingError, match=r"^size is 0"):
        Permutation(0, bytes(32))
    with pytest.raises(SettingError, match="at most 4611686018427387904"):
        Permutation(2**62 + 1, bytes(32))
    with pytest.raises(SettingError, match="has 16 bytes"):
        Permutation(5, bytes(16))
    for numbers in ([-1, 2], [0, 5]):
        with pytest.raises(SettingError, match="from 0 to 4"):
            Permutation(5, bytes(32))(np.array(numbers))
