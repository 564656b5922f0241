"""Normals from words: a slow twin, the same bits compiled, the law up to and beyond six deviations."""

import numpy as np
import pytest
from scipy import stats

from fedmf import kernels
from fedmf.kernels import loops
from fedmf.normals import PAIRS, box_muller, fill_normals
from fedmf.randomness import SecretKey, gaussian_row, uniform_words

KEY = SecretKey.reproducible(1)


@pytest.fixture(autouse=True)
def _count_of_its_own(monkeypatch):
    monkeypatch.setattr(kernels, "_handled", 0)


def words_of(pairs, first=0):
    """Uniform words of `pairs` pairs, (4 pairs,) uint32."""
    return uniform_words(KEY, 2 * pairs, first=first).view("<u4")


def edges():
    """Words whose radius or angle is at an end: smallest, largest, around powers of two and around each quarter turn."""
    powers = [2**k + step for k in range(64) for step in (-1, 0, 1)] + [2**64 - 1, 2**64 - 2, 2**64 - 2**11]
    radii = [w for w in powers if w < 2**64] + [int(2**k / 2**0.5) for k in range(2, 64)]
    turns = [(quarter << 22) + step for quarter in range(5) for step in (-1, 0, 1, 1 << 21, (1 << 21) - 1)]
    angles = [turn << 8 for turn in turns if 0 <= turn < 1 << 24]
    words = [(w & 0xFFFFFFFF, w >> 32, 0xFFFFFFFF, angle | 0xFF) for w in radii for angle in angles]
    return np.array(words, np.uint32).ravel()


def exact(words):
    """The transform in float64, by numpy's functions: radius, cosine and sine, (k,) each."""
    low, high, _, turn = words.reshape(-1, 4).T.astype(object)
    u = np.array((low + (high << 32)) * 2 + 1, np.float64) * 2.0**-65
    below = np.array((1 << 65) - (low + (high << 32)) * 2 - 1, np.float64) * 2.0**-65  # 1 - u, exact near 1
    with np.errstate(divide="ignore"):  # where u or 1 - u is 0 in float64, the other form is taken
        logarithm = np.where(u < 0.5, np.log(u), np.log1p(-below))
    angle = 2 * np.pi * (np.array([int(t) >> 8 for t in turn]) + 0.5) / 2**24
    return np.sqrt(-2 * logarithm), np.cos(angle), np.sin(angle)


def drawn(function, words):
    """Cosines and sines that a function makes of words of any number of pairs, (2, k)."""
    out = np.empty((2, words.size // 4), np.float32)
    for start in range(0, out.shape[1], PAIRS):
        block = slice(start, start + PAIRS)
        function(words[4 * start : 4 * (start + PAIRS)], out[0, block], out[1, block])
    return out


def test_normals_are_those_of_the_exact_transform_at_every_edge_and_between():
    for words in (edges(), words_of(200_000)):
        radius, cosine, sine = exact(words)
        found = drawn(box_muller, words)
        # Below a radius of 1e-7 the float64 that stands for w + 1/2 has no digits left: once in 10^14 pairs.
        tolerance = 3e-7 * radius + 1.1e-8
        assert (np.abs(found - radius * np.stack([cosine, sine])) < tolerance).all()
        assert np.isfinite(found).all()


def test_no_coordinate_is_zero_unless_its_radius_is():
    """Angles lie between the axes: a coordinate that is 0 with a chance of 2^-23 would show a sum without noise."""
    words = edges()
    found, (radius, _, _) = drawn(box_muller, words), exact(words)
    assert (np.abs(found[:, radius > 1e-3]) > 1e-11).all()


@pytest.mark.parametrize("count", [1, 5, 1023, 1025, PAIRS])
def test_compiled_normals_have_the_same_bits(count):
    words = np.concatenate([edges(), words_of(40_000)])
    compiled = loops.box_muller if kernels.available() else plain_on_few
    for start in (0, 4 * 17, words.size - 4 * count):
        chosen = words[start : start + 4 * count]
        found, expected = drawn(compiled, chosen), drawn(box_muller, chosen)
        np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


def test_the_compiled_loop_run_as_python_has_the_same_bits():
    """Needs no compiler; few pairs, all kinds."""
    words = np.concatenate([edges().reshape(-1, 4)[::97].ravel(), words_of(3000)])
    with np.errstate(over="ignore"):  # unsigned numbers that wrap, as they do in numpy and when compiled
        found = drawn(getattr(loops.box_muller, "py_func", loops.box_muller), words)
    np.testing.assert_array_equal(found.view(np.uint32), drawn(box_muller, words).view(np.uint32))


def plain_on_few(words, cosines, sines):
    box_muller(words, cosines, sines)  # without numba nothing else is ever used


def test_a_process_changes_to_compiled_code_once_it_pays_and_the_bits_stay(monkeypatch):
    monkeypatch.setattr(kernels, "PAYS", 3 * PAIRS)
    taken = []
    monkeypatch.setattr(loops, "box_muller", lambda *given: taken.append(1) or box_muller(*given))
    row = gaussian_row(KEY, 0, 8 * PAIRS)
    assert bool(taken) == kernels.available()
    assert len(taken) < 4 or not kernels.available()
    kernels.load()
    np.testing.assert_array_equal(gaussian_row(KEY, 0, 8 * PAIRS), row)


def test_without_numba_no_compiled_code_is_taken(monkeypatch):
    monkeypatch.setattr(kernels, "available", lambda: False)
    kernels.load()
    assert kernels.kernel("box_muller", 10**12) is None


def test_moments_and_goodness_of_fit_of_a_million():
    """Chances of a false alarm below 1e-4 each, with a fixed key; a scale that is 1 % wrong is caught."""
    row = gaussian_row(KEY, 11, 1 << 20).astype(np.float64)
    n = row.size
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170)):
        assert abs(np.mean(row**power) - mean) < 4 * np.sqrt(variance / n)
    edges_of_bins = stats.norm.ppf(np.linspace(0, 1, 513))
    for scale, fits in ((1, True), (1.01, False)):
        counts, _ = np.histogram(scale * row, edges_of_bins)
        assert (stats.chisquare(counts).pvalue > 1e-4) == fits
        assert (stats.kstest(scale * row, "norm").pvalue > 1e-4) == fits


def test_tails_have_their_law_to_six_deviations_and_beyond():
    """Pairs drawn given that u < 2^-j: there the square radius less its least value is exponential, to 9.4 deviations.

    At j = 0 this is the whole law, at j = 26 a pair's radius is above 6, at j = 60 above 9.1.
    """
    n = 50_000
    words = words_of(n, first=10**6).reshape(-1, 4)
    for j in (0, 1, 5, 12, 20, 26, 32, 40, 50):
        tail = words.copy()
        whole = (words[:, 0].astype(object) + (words[:, 1].astype(object) << 32)) >> j
        tail[:, 0], tail[:, 1] = whole & 0xFFFFFFFF, whole >> 32
        x, y = drawn(box_muller, tail.ravel()).astype(np.float64)
        beyond = x**2 + y**2 - 2 * j * np.log(2)
        assert stats.kstest(beyond / 2, "expon").pvalue > 1e-4
        assert stats.kstest(np.arctan2(y, x), stats.uniform(-np.pi, 2 * np.pi).cdf).pvalue > 1e-4
    x, y = drawn(box_muller, np.array([0, 0, 0, 0], np.uint32))
    assert 9.4 < np.hypot(x, y)[0] < 9.5


def test_coordinates_beyond_each_deviation_are_as_many_as_they_should_be():
    """Of 2^24 drawn ones: counts beyond 1 to 5 deviations, on either side, within four of their own deviations."""
    rows = np.concatenate([gaussian_row(KEY, row, 1 << 22) for row in range(20, 24)])
    for limit in (1, 2, 3, 4, 4.5, 5):
        expected = rows.size * stats.norm.sf(limit)
        for side in (rows, -rows):
            assert abs(np.count_nonzero(side > limit) - expected) < 4 * np.sqrt(expected) + 1


def test_the_two_of_a_pair_and_neighbours_are_independent():
    row = gaussian_row(KEY, 12, 1 << 20).astype(np.float64)
    for distance in (1, 2, 4, PAIRS, 2 * PAIRS, 4 * PAIRS):
        one, other = row[:-distance], row[distance:]
        for of in (np.asarray, np.square, np.abs):
            assert abs(np.corrcoef(of(one), of(other))[0, 1]) < 4.5 / np.sqrt(row.size)
    x, y = row.reshape(-1, 2, PAIRS).swapaxes(0, 1).reshape(2, -1)
    places = [np.searchsorted(stats.norm.ppf(np.linspace(0, 1, 17)[1:-1]), values) for values in (x, y)]
    counts = np.zeros((16, 16))
    np.add.at(counts, tuple(places), 1)
    assert stats.chisquare(counts.ravel()).pvalue > 1e-4


def test_a_block_of_a_row_is_made_of_its_own_words_alone():
    """Block b of a row is what the words from block b of its stream on make, so that it can be drawn on its own."""
    row = gaussian_row(KEY, 3, 5 * PAIRS + 7)
    stream = KEY.derive("noise row", 3)
    for block in range(2):
        words = uniform_words(stream, 2 * PAIRS, first=2 * PAIRS * block).view("<u4")
        cosines, sines = np.empty((2, PAIRS), np.float32)
        fill_normals(words, cosines, sines)
        start = 2 * PAIRS * block
        np.testing.assert_array_equal(row[start : start + 2 * PAIRS], np.concatenate([cosines, sines]))
