"""A tag binds values to their run, round, client and mask key."""

import hashlib
import hmac as standard

import pytest
from hypothesis import given, strategies as st

from fedmf.randomness import SecretKey
from fedmf.updates import tags
from fedmf.updates.tags import TAG_BYTES, Turn, with_tag, without_tag

KEY = SecretKey.reproducible(0).mask_key("7", 2)
TURN = Turn(run=2**63 + 5, epoch=1, step=2, client="7")
VALUES = bytes(range(40))


def test_what_the_client_binds_is_what_the_server_opens():
    for values in (VALUES, b"", bytes(1_000_000)):
        sent = with_tag(values, KEY, TURN)
        assert len(sent) == len(values) + TAG_BYTES == len(values) + 16
        assert without_tag(sent, KEY, TURN) == values


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
def test_values_of_another_task_are_refused(other):
    assert without_tag(with_tag(VALUES, KEY, other), KEY, TURN) is None


def test_values_under_another_key_are_refused():
    assert without_tag(with_tag(VALUES, SecretKey.reproducible(1), TURN), KEY, TURN) is None


@given(st.integers(0, len(VALUES) + TAG_BYTES - 1), st.integers(1, 255))
def test_no_byte_of_values_or_tag_can_be_changed(place, flipped):
    sent = bytearray(with_tag(VALUES, KEY, TURN))
    sent[place] ^= flipped
    assert without_tag(bytes(sent), KEY, TURN) is None


@given(st.one_of(st.binary(max_size=80), st.none(), st.text(), st.floats(), st.lists(st.binary())))
def test_whatever_else_is_sent_is_refused_without_an_error(data):
    assert without_tag(data, KEY, TURN) is None


@pytest.mark.parametrize("cut", [1, TAG_BYTES, TAG_BYTES + 1])
def test_a_shortened_reply_is_refused(cut):
    assert without_tag(with_tag(VALUES, KEY, TURN)[:-cut], KEY, TURN) is None


def test_tags_are_compared_in_constant_time(monkeypatch):
    compared = []
    monkeypatch.setattr(tags.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or False)
    assert without_tag(with_tag(VALUES, KEY, TURN), KEY, TURN) is None
    assert [(len(a), len(b)) for a, b in compared] == [(16, 16)]
