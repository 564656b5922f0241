"""What travels: values within their bounds whatever the bytes are, bound to their task by a tag."""

import hashlib
import hmac as standard

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedmf.randomness import SecretKey
from fedmf.updates import wire
from fedmf.updates.vectors import TAU
from fedmf.updates.wire import TAG_BYTES, Bounds, Turn, with_tag, without_tags

BOUNDS = Bounds(1.0, 0.25)
INT8 = Bounds(1.0, 0.25, "int8")


def test_values_and_levels_survive_the_wire():
    values = np.array([0.1, -0.2, 0.0], np.float32)
    np.testing.assert_array_equal(wire.decode(wire.to_bytes(values), BOUNDS, kept=3), values)
    np.testing.assert_array_equal(wire.to_vector(wire.to_bytes(values)), values)
    levels = np.array([127, -127, 3], np.int8)
    decoded = wire.decode(wire.to_bytes(levels), INT8, kept=3)
    np.testing.assert_allclose(decoded, levels * (0.25 / 127), rtol=1e-6)


@pytest.mark.parametrize(
    "data",
    [
        None,
        3,
        "text",
        b"",
        b"123",
        bytes(16),
        np.zeros(3, np.float32),
        np.array([0, np.nan, 0], "<f4").tobytes(),
    ],
    ids=["nothing", "a number", "text", "no bytes", "few bytes", "many bytes", "an array", "not finite"],
)
def test_whatever_is_malformed_counts_as_the_zero_vector(data):
    np.testing.assert_array_equal(wire.decode(data, BOUNDS, kept=3), np.zeros(3))


@given(st.binary(max_size=64), st.integers(0, 16), st.sampled_from([BOUNDS, INT8, Bounds(None, None)]))
@settings(max_examples=300)
def test_no_bytes_exceed_the_bounds(data, kept, bounds):
    values = wire.decode(data, bounds, kept=kept)
    assert values.shape == (kept,)
    assert np.isfinite(values).all()
    if bounds.l2_norm is not None:
        assert np.linalg.norm(values.astype("f8")) <= bounds.radius
        assert np.abs(values).max(initial=0) <= np.float32(bounds.linf_norm)


def test_values_beyond_the_bounds_are_clipped_to_them():
    wild = np.array([1e30, -1e30, 0.1], np.float32)
    np.testing.assert_allclose(wire.decode(wild.tobytes(), BOUNDS, kept=3), [0.25, -0.25, 0.1])
    many = np.full(100, 0.25, np.float32)
    assert np.linalg.norm(wire.decode(many.tobytes(), BOUNDS, kept=100)) == pytest.approx(1.0, rel=1e-5)


def test_value_bytes_are_nominal_and_int8_is_accounted_at_the_longer_radius():
    assert INT8.radius == pytest.approx(1 + TAU)
    assert BOUNDS.radius == 1.0
    assert wire.value_bytes(1024, 0.1, "float32") == pytest.approx(409.6)
    assert wire.value_bytes(1024, 0.1, "int8") == pytest.approx(102.4)


KEY = SecretKey.reproducible(0).mask_key("7", 2)
TURN = Turn(run=2**63 + 5, epoch=1, step=2, client="7")
VALUES = bytes(range(40))


def opened(data):
    """What is left of a client's bytes without their tag."""
    return without_tags([data], [KEY], [TURN])[0]


def test_what_the_client_binds_is_what_the_server_opens():
    for values in (VALUES, b"", bytes(1_000_000)):
        sent = with_tag(values, KEY, TURN)
        assert len(sent) == len(values) + TAG_BYTES == len(values) + 16
        assert opened(sent) == values


def test_the_tag_is_hmac_under_a_key_of_its_own_that_hangs_on_run_epoch_step_and_client():
    """By hand: every part of the key's name with its type and length, as `SecretKey.derive` says."""
    name = b"".join(
        len(part).to_bytes(4, "big") + part
        for part in (b"sreply tag", b"i%d" % (2**63 + 5), b"i1", b"i2", b"s7")
    )
    key = standard.new(KEY.reveal(), name, hashlib.sha256).digest()
    expected = standard.new(key, VALUES, hashlib.sha256).digest()[:16]
    assert with_tag(VALUES, KEY, TURN) == VALUES + expected
    assert key not in (KEY.reveal(), KEY.derive("coordinates").reveal(), KEY.derive("rounding", 0).reveal())


@pytest.mark.parametrize(
    "other",
    [
        TURN._replace(run=1),
        TURN._replace(epoch=0),
        TURN._replace(step=1),
        TURN._replace(client="8"),
        TURN._replace(epoch=2, step=1),
    ],
    ids=["run", "epoch", "step", "client", "epoch and step"],
)
def test_values_of_another_task_or_under_another_key_are_refused(other):
    assert opened(with_tag(VALUES, KEY, other)) is None
    assert opened(with_tag(VALUES, SecretKey.reproducible(1), TURN)) is None


@given(st.integers(0, len(VALUES) + TAG_BYTES - 1), st.integers(1, 255))
def test_no_byte_of_values_or_tag_can_be_changed(place, flipped):
    sent = bytearray(with_tag(VALUES, KEY, TURN))
    sent[place] ^= flipped
    assert opened(bytes(sent)) is None


@given(st.one_of(st.binary(max_size=80), st.none(), st.text(), st.floats(), st.lists(st.binary())))
def test_whatever_else_is_sent_is_refused_without_an_error(data):
    assert opened(data) is None
    assert opened(with_tag(VALUES, KEY, TURN)[:-1]) is None


def test_tags_are_compared_in_constant_time(monkeypatch):
    compared = []
    monkeypatch.setattr(wire.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or False)
    assert opened(with_tag(VALUES, KEY, TURN)) is None
    assert [(len(a), len(b)) for a, b in compared] == [(16, 16)]
