"""Records sealed between a run's server and one node: who carries them, or is given them, reads and changes nothing.

The key of each direction comes from two Diffie-Hellman secrets (X25519, RFC 7748), the run's fresh key with the node's box
key and the server's box key with the node's, by HKDF-SHA256 (RFC 5869) over the three public keys; so only the holder of
the server's box key makes what a node opens, and only the node's makes what the server opens. A box is a random nonce of 12
bytes and what ChaCha20-Poly1305 (RFC 8439) makes of the text and of what the text is `about`.

An attacker who kept the boxes, and later gets the server's or a node's box key, opens them: with a node's key, those of that node.
"""

import base64
import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from fedmf.errors import SettingError

# Of a sealed message: the ConfigRecord with a box for each record, by its name; in tasks the run's key too, and a box
# with a digest of what travels in the open.
SEALED, RUN_KEY, PUBLIC = "sealed", "run-key", "public"
NONCE_BYTES, TAG_BYTES = 12, 16
_PURPOSE = b"fedmf sealed 1"
HOW = "make one by openssl genpkey -algorithm x25519 -out FILE."


@dataclass(frozen=True, repr=False)
class Channel:
    """The keys between a run's server and a node, 32 bytes for each direction."""

    to_node: bytes
    to_server: bytes


def public_box_key(text: str) -> X25519PublicKey:
    """Return a public box key that is written as the base64 of its 32 bytes. Raises `ValueError` for none."""
    return X25519PublicKey.from_public_bytes(base64.b64decode(text, validate=True))


def private_box_key(file: Path) -> X25519PrivateKey:
    """Return the private box key in a PEM file. Raises `SettingError` for none, and for one that every account can read."""
    try:
        if file.stat().st_mode & 0o007:
            raise SettingError(
                f"the box key in {file} can be read or written by other accounts; chmod 600 {file}."
            )
        key = load_pem_private_key(file.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise SettingError(f"the box key in {file} cannot be read ({error}); {HOW}") from error
    if not isinstance(key, X25519PrivateKey):
        raise SettingError(f"{file} holds a key of another kind than a box key; {HOW}")
    return key


def server_channel(run: X25519PrivateKey, server: X25519PrivateKey, node: X25519PublicKey) -> Channel:
    """Return the channel to a node, as the server of a run makes it with the run's and its own private key."""
    return _channel(run.exchange(node) + server.exchange(node), run.public_key(), server.public_key(), node)


def node_channel(run: X25519PublicKey, server: X25519PublicKey, node: X25519PrivateKey) -> Channel:
    """Return the channel to the server of a run, as a node makes it with its own private key."""
    return _channel(node.exchange(run) + node.exchange(server), run, server, node.public_key())


def _channel(secrets: bytes, *keys: X25519PublicKey) -> Channel:
    about = b"".join(key.public_bytes_raw() for key in keys)
    made = HKDF(SHA256(), 64, salt=None, info=_PURPOSE + about).derive(secrets)
    return Channel(made[:32], made[32:])


def about_task(run: int, number: str, kind: str) -> bytes:
    """Return what the tasks of a run's round `number` are about; `kind` is Flower's type of the message."""
    return f"task {run} {number} {kind} ".encode()


def digest_public(overrides: str, models: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Return the SHA-256 of what travels in the open with a task, which is sealed with it as record PUBLIC.

    That is the text of the run's settings, and `models`: Flower's ArrayRecords by name, each array under its own with the
    bytes `data`.
    """
    digest = hashlib.sha256()
    parts = [overrides.encode()]
    for name, arrays in sorted(models.items()):
        for key, array in sorted(arrays.items()):
            parts += [name.encode(), key.encode(), array.data]
    for part in parts:
        digest.update(b"%d " % len(part))
        digest.update(part)  # by itself: a model is not copied
    return digest.digest()


def about_reply(boxes: Mapping[str, bytes]) -> bytes:
    """Return what the reply to the task in `boxes` is about: that task."""
    digest = hashlib.sha256()
    for name in sorted(boxes):
        digest.update(b"%s %d %s" % (name.encode(), len(boxes[name]), boxes[name]))
    return b"reply " + digest.digest()


def seal(key: bytes, records: Mapping[str, bytes], about: bytes) -> dict[str, bytes]:
    """Return named records each in a box of its own, NONCE_BYTES + TAG_BYTES longer, new at each call."""
    boxes = {}
    for name, text in records.items():
        nonce = os.urandom(NONCE_BYTES)
        boxes[name] = nonce + ChaCha20Poly1305(key).encrypt(nonce, text, about + name.encode())
    return boxes


def unseal(key: bytes, boxes: Mapping[str, object], about: bytes) -> dict[str, bytes]:
    """Return what is in those of `boxes` that were sealed with `key`, under their names and `about` this; never raises."""
    records = {}
    for name, box in boxes.items():
        if isinstance(box, bytes) and len(box) >= NONCE_BYTES + TAG_BYTES:
            with suppress(InvalidTag):
                nonce, text = box[:NONCE_BYTES], box[NONCE_BYTES:]
                records[name] = ChaCha20Poly1305(key).decrypt(nonce, text, about + name.encode())
    return records
