"""Keys, streams and public draws; cohorts that share no client, and the permutation that draws them."""

import hashlib
import math
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import chi2

from fedmf.errors import ParticipationError, SettingError
from fedmf.normals import BLOCK, FORM
from fedmf.participation import (
    SHUFFLED,
    Participation,
    draw_cohort,
    permuted,
    rounds_that_fit,
)
from fedmf.randomness import PublicSeed, SecretKey, gaussian_row, uniform_words

KEY = SecretKey.reproducible(1)


def test_text_of_a_key_never_shows_it():
    key = SecretKey.generate()
    for text in (repr(key), str(key), f"{key}", f"{[key]}"):
        assert key.reveal().hex() not in text
        assert repr(key.reveal()) not in text
    assert len({SecretKey.generate() for _ in range(100)}) == 100


@pytest.mark.parametrize("material", [b"", b"short", bytes(32), b"\xff" * 32, bytearray(range(32)), "a" * 32])
def test_refuses_short_or_constant_keys(material):
    with pytest.raises(SettingError, match="secret key"):
        SecretKey(material)


def test_derivation_separates_purposes_and_positions():
    derived = [
        KEY,
        KEY.ratchet(),
        KEY.derive("mask"),
        KEY.derive("mask", 1),
        KEY.derive("mask", "1"),
        KEY.derive("mask", 1, 2),
        KEY.derive("mask", 12),
        KEY.derive("mask", "1", "2"),
        KEY.derive("mask", "1i2"),
        KEY.derive("noise row", 1),
        KEY.mask_key("1", 0),
        KEY.mask_key("1", 1),
        KEY.mask_key("2", 0),
        KEY.ratchet().mask_key("1", 0),
    ]
    assert len({key.reveal() for key in derived}) == len(derived)
    # Fixed for good: a resumed run must derive the keys that the run before the crash derived.
    assert KEY.mask_key("17", 3).reveal().hex()[:16] == "f22d2098d9f363eb"
    assert KEY.ratchet().reveal().hex()[:16] == "ae23bd2a35a9c2fb"


def test_words_are_the_aes_counter_stream_from_any_position():
    words = uniform_words(KEY, 20)
    for first in range(7):
        np.testing.assert_array_equal(uniform_words(KEY, 10, first=first), words[first : first + 10])


def test_a_row_is_a_function_of_key_row_and_coordinate(monkeypatch):
    row = gaussian_row(KEY, 3, 100_001)
    np.testing.assert_array_equal(gaussian_row(KEY, 3, 100_001), row)
    for dimension in (1, 7, 8191, 8192, 8193, 16383, 16384, 16385, 100_000):
        np.testing.assert_array_equal(gaussian_row(KEY, 3, dimension), row[:dimension])
    assert row.dtype == np.float64
    np.testing.assert_array_equal(row % 1, 0.5)
    monkeypatch.setattr("fedmf.randomness.SPARE", 0)  # what one block in 10^5 does: it draws on
    np.testing.assert_array_equal(gaussian_row(KEY, 3, BLOCK), row[:BLOCK])


def test_rows_are_fixed_for_good_on_every_machine():
    """Resumed elsewhere, an epoch must meet the rows that it began with. Another form of normals needs another `FORM`."""
    digest = hashlib.sha256(gaussian_row(KEY, 3, 100_001).astype("<f8").tobytes()).hexdigest()
    assert (FORM, digest[:16]) == (3, "0bd87917755681bf")


def test_rows_are_unrelated():
    """Their law, and numbers of one row at a distance: test_normals."""
    rows = [gaussian_row(KEY, row, 50_000) for row in range(3)] + [gaussian_row(KEY.ratchet(), 0, 50_000)]
    assert np.abs(np.corrcoef(rows)[np.triu_indices(4, 1)]).max() < 4 / np.sqrt(50_000)
    far = [0, *(2**power + more for power in (8, 16, 24, 32, 40) for more in (0, 1))]
    assert len({gaussian_row(KEY, row, 4).tobytes() for row in far}) == len(far)


def test_noise_and_masks_use_unrelated_streams():
    row = gaussian_row(KEY, 0, 20_000)
    mask = uniform_words(KEY.mask_key("0", 0).derive("coordinates"), 20_000).astype(float)
    assert abs(np.corrcoef(row, mask)[0, 1]) < 4 / np.sqrt(20_000)


def test_public_draws_depend_on_seed_purpose_and_position_and_are_fixed_for_good():
    """Resumed under another version, a run must meet the cohorts of the epoch under way again."""

    def draw(seed, *where):
        return PublicSeed(seed).generator(*where).bit_generator.random_raw()

    found = [draw(1, "cohorts", 0), draw(2, "cohorts", 0), draw(1, "cohorts", 1)]
    assert found == [3843659861095775933, 3991268268571896674, 15420353182826310549]
    assert len({draw(7, *where) for where in (("a",), ("b",), ("a", 0), ("a", 1), ("a", "0"))}) == 5


def test_signs_are_fair_and_fixed():
    signs = PublicSeed(7).signs(10_001, "rotation")
    assert set(np.unique(signs)) == {-1.0, 1.0}
    assert abs(signs.mean()) < 4 / 100
    np.testing.assert_array_equal(PublicSeed(7).signs(10_001, "rotation"), signs)
    for count in (1, 7, 8, 9, 17):
        np.testing.assert_array_equal(PublicSeed(7).signs(count, "rotation"), signs[:count])
    drawn = [
        PublicSeed(seed).signs(16, use) for seed, use in ((7, "rotation"), (8, "rotation"), (7, "other"))
    ]
    written = ["".join("+" if sign > 0 else "-" for sign in row) for row in drawn]
    assert written == ["-+-+---+-++--++-", "+--++-++--++--+-", "+--+++----++-+++"]


def test_reproducible_secrets_depend_on_the_seed_and_stay_what_they_were():
    """The same seed in another version must give the same run; another seed another one."""
    assert len({SecretKey.reproducible(seed) for seed in range(20)}) == 20
    expected = hashlib.sha256(b"fedmf reproducible, NOT private" + b"\0\0\0\x02i7").digest()
    assert SecretKey.reproducible(7).reveal() == expected


# cohorts


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
    assert not np.array_equal(asked[:1000], draw_cohort(clients, 1000, epoch=4, step=0, seed=PublicSeed(2)))
    assert 0 <= asked.min() <= asked.max() < clients


def test_too_many_rounds_names_the_largest_that_fits():
    for call, *numbers, said in (
        (rounds_that_fit, 1437, 64, 23, "rounds_per_epoch that fits is 22, .*cohort_size that fits is 62"),
        (rounds_that_fit, 10, 11, "at most 10 fits"),
        (Participation, 10, 2, 6, 3, "6 disjoint cohorts of 2 need 12 clients, but there are 10"),
        (rounds_that_fit, 0, 1, "^clients is 0"),
        (rounds_that_fit, 10, 0, "^cohort_size is 0"),
        (rounds_that_fit, 10, 1, 0, "^rounds_per_epoch is 0"),
        (Participation, 10, 2, 5, 0, "^epochs is 0"),
        (Participation(10, 2, 5, 3).extended, 3, 0, "^epochs is 0"),
        (PublicSeed, -1, "^seed is -1"),
    ):
        with pytest.raises((ParticipationError, SettingError), match=said):
            call(*numbers)
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
    assert likelihood(np.array([*seen.values(), *[0] * (math.factorial(size) - len(seen))])) > UNLIKELY


@pytest.mark.parametrize("apart", [1, 317, 50_000])
def test_under_one_key_pairs_at_any_distance_are_spread_evenly(apart):
    """317 is the side of the square."""
    size, strips = 100_003, 32
    images = named(np.arange(size), size) * strips // size
    assert likelihood(np.bincount(strips * images[:-apart] + images[apart:], minlength=strips**2)) > UNLIKELY


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
