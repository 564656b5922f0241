"""Masks: the iid law, exact tables, slow and compiled twins; and the rotation: norms kept, undone, compiled or not."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

from fedmf.errors import SettingError
from fedmf.randomness import PublicSeed, SecretKey, uniform_words
from fedmf.updates import masks
from fedmf.updates.masks import coordinates, gap_table
from fedmf.updates.rotation import Rotation, hadamard, padded_dimension
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
    for dimension in (1, 2, 3, *range(1100, 1130)):
        kept = [coordinate for coordinate in everywhere if coordinate < dimension]
        for found in both_forms(lambda d=dimension: coordinates(KEY, d, gamma)):
            assert (found.dtype, found.tolist()) == (np.int64, kept)


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
        assert int(table[k - 1]) == min(int((1 - (1 - Fraction(gamma)) ** k) * 2**64), 2**64 - 1)


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
    assert np.abs(np.corrcoef(drawn)[np.triu_indices(len(keys), 1)]).max() < 5 / np.sqrt(20_000)
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


# the rotation


def test_the_rotation_pads_to_the_next_power_of_two_and_nothing_else_does():
    for count, padded in ((1, 1), (1024, 1024), (1025, 2048)):
        assert padded_dimension(count, "hadamard") == padded
        assert padded_dimension(count, "identity") == count
    for wrong, said in (
        (("fourier", 4), r"^rotation is .*hadamard, identity"),
        (("identity", 0), "^dimension is 0"),
    ):
        with pytest.raises(SettingError, match=said):
            Rotation(*wrong, PublicSeed(0))


@pytest.mark.parametrize("make", [lambda n: np.eye(n)[0], np.ones, lambda n: (-1.0) ** np.arange(n)])
def test_transform_is_orthonormal_on_the_traps(make):
    """A known trap of docs/privacy.md: an un-normalised Hadamard matrix lengthens e_1 or the constant row."""
    vector = make(256).astype("f4")
    assert np.linalg.norm(hadamard(vector)) == pytest.approx(np.linalg.norm(vector), rel=1e-6)
    np.testing.assert_allclose(hadamard(hadamard(vector)), vector, atol=1e-5)


@given(st.integers(1, 700), st.sampled_from(["hadamard", "identity"]), st.integers(0, 1000))
@settings(max_examples=50)
def test_rotation_keeps_norms_and_is_undone(dimension, kind, seed):
    rotation = Rotation(kind, dimension, PublicSeed(seed))
    vector = np.random.default_rng(seed).normal(size=dimension).astype("f4")
    for turned in both_forms(lambda: rotation.turn(vector)):
        assert turned.values.shape == (padded_dimension(dimension, kind),)
        assert np.linalg.norm(turned.values) == pytest.approx(np.linalg.norm(vector), rel=1e-5)
        assert turned.norm == pytest.approx(np.linalg.norm(vector), rel=1e-6)
        np.testing.assert_allclose(rotation.unrotate(turned.values), vector, atol=1e-5)


def butterflies(vector):
    """The slow twin: one bit of a coordinate after another, in float64."""
    done, stride = vector.astype("f8"), 1
    while stride < done.size:
        pairs = done.reshape(-1, 2, stride)
        done = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
        stride *= 2
    return done / done.size**0.5


@needs_numba
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("bits", [*range(19), 20, 21])
def test_compiled_and_plain_transforms_agree_with_the_slow_twin_to_rounding(bits, dtype):
    rng = np.random.default_rng(bits)
    vector = (rng.normal(size=1 << bits) * 10.0 ** rng.uniform(-6, 6, 1 << bits)).astype(dtype)
    given, expected = vector.copy(), butterflies(vector)
    for found in both_forms(lambda: hadamard(vector)):
        assert found.dtype == vector.dtype
        unit = np.finfo(dtype).eps / 2
        assert np.linalg.norm(found - expected) <= 2 * bits * unit * np.linalg.norm(expected)
    np.testing.assert_array_equal(vector, given)  # left alone


@needs_numba
@pytest.mark.parametrize("kind", ["read-only", "strided", "big-endian", "float16"])
def test_compiled_transform_takes_whatever_numpy_takes(kind):
    vector = np.random.default_rng(0).normal(size=4096).astype(">f4" if kind == "big-endian" else "f4")
    if kind == "read-only":
        vector.setflags(write=False)
    if kind == "strided":
        vector = np.repeat(vector, 2)[::2]
    if kind == "float16":
        vector = vector.astype(np.float16)
    plain, quick = both_forms(lambda: hadamard(vector))
    assert quick.dtype == plain.dtype
    np.testing.assert_allclose(quick, plain, atol=1e-5)


@needs_numba
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(
    "bad", [[np.nan], [np.inf], [-np.inf], [np.inf, np.inf], [np.inf, -np.inf], [np.nan, np.inf]], ids=str
)
def test_what_is_not_finite_spoils_every_coordinate_compiled_or_not(bad, dtype):
    vector = np.random.default_rng(0).normal(size=1 << 13).astype(dtype)
    vector[[700, 5000][: len(bad)]] = bad
    with np.errstate(invalid="ignore"):
        for found in both_forms(lambda: hadamard(vector)):
            assert not np.isfinite(found).any()
