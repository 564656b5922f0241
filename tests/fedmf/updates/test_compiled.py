"""Compiled loops over an update beside plain numpy: masks are equal bit for bit, all else agrees to rounding."""

import builtins
import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmf.randomness import SecretKey
from fedmf.updates import compiled, masks
from fedmf.updates.masks import kept_coordinates

KEY = SecretKey.reproducible(5)
needs_numba = pytest.mark.skipif(not compiled.available(), reason="numba, the extra fast, is not installed")


def both(monkeypatch, run):
    """What `run` returns in plain numpy, and what it returns compiled, however small the vector."""
    results = []
    for worthwhile in (1 << 62, 0):
        monkeypatch.setattr(compiled, "WORTHWHILE", worthwhile)
        results.append(run())
    return results


@needs_numba
@pytest.mark.parametrize("gamma", [1.0, 0.999, 0.5, 0.1, 0.01, 1e-3, 1e-5, 2.0**-32])
@pytest.mark.parametrize("dimension", [0, 1, 2, 3, 15, 1024, 1025, 40_000, 1 << 20])
def test_compiled_masks_are_those_of_numpy_bit_for_bit(dimension, gamma, monkeypatch):
    for step in range(6):
        key = KEY.mask_key("m", step)
        plain, quick = both(monkeypatch, lambda key=key: kept_coordinates(key, dimension, gamma))
        assert quick.dtype == plain.dtype
        np.testing.assert_array_equal(quick, plain)


@needs_numba
@given(st.integers(0, 3000), st.floats(1e-4, 1.0), st.integers(0, 2**32), st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_compiled_masks_are_those_of_numpy_however_many_words_are_drawn_at_once(
    dimension, gamma, seed, words
):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masks, "_draws_for", lambda coordinates, keep_probability: words)
        key = SecretKey.reproducible(seed)
        plain, quick = both(patch, lambda: kept_coordinates(key, dimension, gamma))
        np.testing.assert_array_equal(quick, plain)


@needs_numba
@pytest.mark.parametrize("gamma", [2.0**-32, 1e-5, 0.01, 0.3, 0.5, 0.999])
def test_compiled_masks_read_words_at_the_edges_of_the_table_as_numpy_does(gamma):
    """Where leading bits do not tell the gap, below, at and above each edge, and the largest and smallest words."""
    table = masks.gap_table(gamma)
    words = np.concatenate([table - np.uint64(1), table, np.array([0, 2**64 - 1], np.uint64)])
    words = np.random.default_rng(0).permutation(np.concatenate([words, words]))
    kernels = compiled.kernels(1 << 20)
    for dimension in (1 << 20, 5000, 1):
        plain = masks._positions_in_numpy(words, gamma, -1, dimension)
        quick = masks._positions_compiled(kernels, words, gamma, -1, dimension)
        np.testing.assert_array_equal(quick[1], plain[1])
        assert (quick[0] == plain[0]) or min(quick[0], plain[0]) >= dimension


def test_without_numba_plain_numpy_is_used_and_a_broken_numba_is_said(monkeypatch, caplog):
    real = builtins.__import__

    def failing(error):
        def importing(name, *rest):
            if name == "numba":
                raise error
            return real(name, *rest)

        return importing

    try:
        for error, said in (
            (ModuleNotFoundError("No module named 'numba'", name="numba"), ""),
            (ImportError("Numba needs NumPy 2.9 or less"), "Numba needs NumPy 2.9 or less"),
        ):
            compiled._loaded.cache_clear()
            monkeypatch.setattr(builtins, "__import__", failing(error))
            with caplog.at_level(logging.WARNING):
                assert not compiled.available()
            assert said in caplog.text
            assert bool(caplog.records) == bool(said)
            assert kept_coordinates(KEY, 1 << 16, 0.01).size
    finally:
        monkeypatch.undo()
        compiled._loaded.cache_clear()
