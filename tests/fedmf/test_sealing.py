"""Sealed records: opened by the one node and the one server, whole, as they were sealed and for what they were sealed."""

import hashlib
import hmac
import os
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from fedmf.errors import SettingError
from fedmf.sealing import (
    NONCE_BYTES,
    TAG_BYTES,
    about_reply,
    about_task,
    digest_public,
    node_channel,
    private_box_key,
    public_box_key,
    seal,
    server_channel,
    unseal,
)

RUN, SERVER, NODE, OTHER = (X25519PrivateKey.from_private_bytes(bytes([k]) * 32) for k in range(1, 5))
ABOUT = about_task(7, "3", "train")
RECORDS = {"task": b"keys", "held": b""}


def public(key):
    return key.public_key()


def channels():
    return server_channel(RUN, SERVER, public(NODE)), node_channel(public(RUN), public(SERVER), NODE)


def slow_keys():
    """RFC 5869 by hand, over X25519 by the library: the two keys of a channel."""
    secret = RUN.exchange(public(NODE)) + SERVER.exchange(public(NODE))
    info = b"fedmf sealed 1" + b"".join(public(key).public_bytes_raw() for key in (RUN, SERVER, NODE))
    prk = hmac.digest(bytes(32), secret, hashlib.sha256)
    first = hmac.digest(prk, info + b"\x01", hashlib.sha256)
    return first, hmac.digest(prk, first + info + b"\x02", hashlib.sha256)


def test_both_sides_have_the_keys_of_the_standard_and_a_box_is_what_it_makes():
    channel, of_node = channels()
    assert channel == of_node
    assert (channel.to_node, channel.to_server) == slow_keys()
    boxes = seal(channel.to_node, RECORDS, ABOUT)
    assert unseal(channel.to_node, boxes, ABOUT) == RECORDS
    lengths = {name: len(text) + NONCE_BYTES + TAG_BYTES for name, text in RECORDS.items()}
    assert {name: len(box) for name, box in boxes.items()} == lengths
    box = boxes["task"]
    assert ChaCha20Poly1305(slow_keys()[0]).decrypt(box[:12], box[12:], ABOUT + b"task") == b"keys"
    assert seal(channel.to_node, RECORDS, ABOUT)["task"] != box  # a nonce of its own


def test_nobody_else_and_nothing_else_opens_it():
    channel, _ = channels()
    boxes = seal(channel.to_node, RECORDS, ABOUT)
    for about in (about_task(8, "3", "train"), about_task(7, "4", "train"), about_task(7, "3", "query")):
        assert unseal(channel.to_node, boxes, about) == {}
    assert unseal(channel.to_server, boxes, ABOUT) == {}
    for other in (
        server_channel(RUN, SERVER, public(OTHER)),  # another node
        server_channel(OTHER, SERVER, public(NODE)),  # another run
        server_channel(
            RUN, OTHER, public(NODE)
        ),  # who has not the server's key: a node that plays the server
        node_channel(public(RUN), public(SERVER), OTHER),
    ):
        assert unseal(other.to_node, boxes, ABOUT) == {}
    assert unseal(channel.to_node, {"held": boxes["task"], "task": boxes["task"]}, ABOUT) == {"task": b"keys"}


def test_a_bit_that_is_turned_and_what_is_no_box_leave_nothing():
    channel, _ = channels()
    for place in (0, NONCE_BYTES, NONCE_BYTES + 3, -1):
        box = bytearray(seal(channel.to_node, RECORDS, ABOUT)["task"])
        box[place] ^= 1
        assert unseal(channel.to_node, {"task": bytes(box)}, ABOUT) == {}
    for other in (None, 3, "text", b"", bytes(NONCE_BYTES + TAG_BYTES - 1), [b"x"]):
        assert unseal(channel.to_node, {"task": other}, ABOUT) == {}


def test_a_reply_is_about_one_task_alone():
    channel, _ = channels()
    first, second = (seal(channel.to_node, RECORDS, ABOUT) for _ in range(2))
    assert about_reply(first) == about_reply(dict(reversed(first.items())))
    assert about_reply(first) != about_reply(second)
    assert about_reply({"a": b"1", "b": b""}) != about_reply({"a": b"", "b": b"1"})
    reply = seal(channel.to_server, RECORDS, about_reply(first))
    assert unseal(channel.to_server, reply, about_reply(second)) == {}


def test_what_travels_in_the_open_is_told_apart_by_names_values_and_settings():
    """No one on the way can exchange the model for what updates are scaled by, or cuts one name short for another."""

    def digest(overrides="seed=1", **arrays):
        return digest_public(
            overrides, {"model": {key: SimpleNamespace(data=data) for key, data in arrays.items()}}
        )

    whole = digest(vector=b"1", scale=b"2")
    assert digest(scale=b"2", vector=b"1") == whole  # in any order
    others = [digest(vector=b"2", scale=b"1"), digest(vector=b"1"), digest("seed=2", vector=b"1", scale=b"2")]
    others += [
        digest(vector=b"12", scale=b""),
        digest("seed=", vector=b"1", scale=b"2"),
        digest_public("seed=1", {}),
    ]
    assert len({whole, *others}) == 7


def test_keys_are_read_as_openssl_writes_them(tmp_path):
    """The text of `openssl genpkey -algorithm x25519`, and the last 32 bytes of its public half in DER."""
    file = tmp_path / "box.pem"
    file.write_text(
        "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VuBCIEIHcHbQpzGKV9PBbBclGyZkXfTC+H68CZKrF3+6UduSwq\n-----END PRIVATE KEY-----\n"
    )
    file.chmod(0o644)
    with pytest.raises(SettingError, match="read or written by other accounts; chmod 600"):
        private_box_key(file)
    file.chmod(0o600)
    key = private_box_key(file)
    assert public_box_key("hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=").public_bytes_raw() == (
        key.public_key().public_bytes_raw()
    )  # RFC 7748, section 6.1: Alice's keys
    for text in ("", "no key", "-----BEGIN PRIVATE KEY-----\nMC4CAQ==\n-----END PRIVATE KEY-----\n"):
        file.write_text(text)
        with pytest.raises(SettingError, match="openssl genpkey -algorithm x25519"):
            private_box_key(file)
    with pytest.raises(SettingError, match="openssl genpkey"):
        private_box_key(tmp_path / os.urandom(4).hex())
