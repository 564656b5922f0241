"""Masks: the iid law, exact tables, slow and compiled twins."""

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from fedmf.randomness import SecretKey, uniform_words
from fedmf.updates import masks
from fedmf.updates.masks import coordinates, gap_table
from oracles import both_forms, needs_numba

KEY = SecretKey.reproducible(2)


def slow_kept(key, dimension, keep_probability, longest=1024):
    """The same draws, one coordinate after another, in exact rational arithmetic."""
    gamma, key = Fraction(keep_probability), key.derive("coordinates")
    thresholds = [int((1 - (1 - gamma) ** k) * 2**64) for k in range(1, longest + 1)]
    kept, position, draw = [], -1, 0
    while position < dimension - 1:
        word = int(uniform_words(key, 1, first=draw)[0])
        draw += 1
        gap = next((k + 1 for k, threshold in enumerate(thresholds) if word < threshold), None)
        position += longest if gap is None else gap
        if gap is not None and position < dimension:
            kept.append(position)
    return kept


@pytest.mark.parametrize(
    ("dimension", "gamma"), [(300, 0.5), (300, 0.1), (3000, 0.01), (20_000, 0.0005), (50, 0.999)]
)
def test_gap_sampling_matches_slow_twin(dimension, gamma):
    assert coordinates(KEY, dimension, gamma).tolist() == slow_kept(KEY, dimension, gamma)


@pytest.mark.parametrize("words", [1, 2, 7])
@pytest.mark.parametrize("gamma", [0.5, 0.02, 0.001])
def test_how_many_words_are_drawn_at_once_changes_nothing(words, gamma, monkeypatch):
    """A batch may end at any coordinate, the last but one among them, or in the midst of a long gap."""
    everywhere = slow_kept(KEY, 1130, gamma)
    monkeypatch.setattr(masks, "_draws_for", lambda left, keep_probability: words)
    for dimension in (1, 2, 3, *range(1050, 1130)):
        kept = [coordinate for coordinate in everywhere if coordinate < dimension]
        for found in both_forms(lambda d=dimension: coordinates(KEY, d, gamma)):
            assert found.tolist() == kept


@pytest.mark.parametrize("longest", [1, 2, 5])
def test_a_gap_as_long_as_the_table_is_kept_and_a_longer_one_is_drawn_on(longest, monkeypatch):
    """With the table of 1024 gaps both are too rare to be met by chance."""
    caches = (masks.gap_table, masks._gap_guide)
    monkeypatch.setattr(masks, "_LONGEST_GAP", longest)
    try:
        for cache in caches:
            cache.cache_clear()
        assert coordinates(KEY, 3000, 0.25).tolist() == slow_kept(KEY, 3000, 0.25, longest)
    finally:
        for cache in caches:
            cache.cache_clear()


@pytest.mark.parametrize("gamma", [1e-5, 0.01, 0.1, 0.5, 0.999])
def test_gap_table_is_exact(gamma):
    table = gap_table(gamma)
    for k in (1, 2, 3, 10, 100, 1024):
        exact = int((1 - (1 - Fraction(gamma)) ** k) * 2**64)
        assert int(table[k - 1]) == min(exact, 2**64 - 1)


def test_masks_are_the_same_bits_on_every_platform():
    assert coordinates(KEY, 100, 0.1).tolist() == [0, 4, 9, 19, 35, 42, 43, 52]


@pytest.mark.parametrize(("gamma", "dimension", "keys"), [(0.1, 2000, 200), (1e-4, 2_000_000, 100)])
def test_counts_follow_the_binomial_law(gamma, dimension, keys):
    """Chi-square of kept counts at a false-alarm chance of 1e-4; a keep probability 10 % off must be caught."""
    counts = np.array([coordinates(KEY.mask_key("c", k), dimension, gamma).size for k in range(keys)])

    def p_value(probability):
        z2 = ((counts - dimension * probability) ** 2 / (dimension * probability * (1 - probability))).sum()
        return 2 * min(stats.chi2.sf(z2, keys), stats.chi2.cdf(z2, keys))

    assert p_value(gamma) > 1e-4
    assert p_value(1.1 * gamma) < 1e-4


def indicator(key, dimension=20_000, gamma=0.1):
    mask = np.zeros(dimension)
    mask[coordinates(key, dimension, gamma)] = 1
    return mask


def test_masks_of_clients_rounds_and_epochs_are_uncorrelated():
    """A known trap of docs/privacy.md: shared masks. Two equal masks would correlate at 1."""
    keys = [KEY.mask_key(client, step) for client in ("0", "1") for step in (0, 1)]
    keys += [KEY.ratchet().mask_key("0", 0)]
    drawn = np.array([indicator(key) for key in keys])
    correlations = np.corrcoef(drawn)[np.triu_indices(len(keys), 1)]
    assert np.abs(correlations).max() < 5 / np.sqrt(20_000)
    assert np.corrcoef(drawn[0], indicator(KEY.mask_key("0", 0)))[0, 1] == pytest.approx(1)  # the control


@needs_numba
@pytest.mark.parametrize("gamma", [2.0**-32, 1e-5, 0.01, 0.3, 0.5, 0.999])
def test_compiled_masks_read_words_at_the_edges_of_the_table_as_numpy_does(gamma):
    """Where leading bits do not tell the gap, below, at and above each edge, and the largest and smallest words."""
    table = masks.gap_table(gamma)
    words = np.concatenate([table - np.uint64(1), table, np.array([0, 2**64 - 1], np.uint64)])
    words = np.random.default_rng(0).permutation(np.concatenate([words, words]))
    for dimension in (1 << 20, 5000, 1):
        plain, quick = both_forms(lambda d=dimension: masks._positions(words, gamma, -1, d))
        np.testing.assert_array_equal(quick[1], plain[1])
        assert (quick[0] == plain[0]) or min(quick[0], plain[0]) >= dimension
