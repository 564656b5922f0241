import hashlib

import numpy as np
import pytest

from fedmf.errors import SettingError
from fedmf.normals import FORM
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


def test_a_row_is_a_function_of_key_row_and_coordinate():
    row = gaussian_row(KEY, 3, 100_001)
    np.testing.assert_array_equal(gaussian_row(KEY, 3, 100_001), row)
    for dimension in (1, 7, 8191, 8192, 8193, 16383, 16384, 16385, 100_000):
        np.testing.assert_array_equal(gaussian_row(KEY, 3, dimension), row[:dimension])
    assert row.dtype == np.float64
    np.testing.assert_array_equal(row % 1, 0.5)


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
    keys = {SecretKey.reproducible(seed) for seed in range(20)}
    assert len(keys) == 20
    expected = hashlib.sha256(b"fedmf reproducible, NOT private" + b"\0\0\0\x02i7").digest()
    assert SecretKey.reproducible(7).reveal() == expected
