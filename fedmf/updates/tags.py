"""The tag behind each client's values, by which the server knows that they answer its own task.

Flower 1.41 takes a reply from any registered node that knows the id of a message, and ids stand in its logs. What binds
a reply to its task is the mask key, which the server sends to the client's node alone. (A registered node that learns
the task's id while the SuperLink stores the task can fetch it too: docs/deployment.md, "Trust".)

    K   = HMAC-SHA256(mask key, "reply tag", run, epoch, step, client)
    tag = the first 16 bytes of HMAC-SHA256(K, values)

K is derived by `SecretKey.derive`, whose purpose and position are encoded without ambiguity, and it is no other key: the
mask itself hangs on the purpose "coordinates", rounding on "rounding". So a tag says nothing about a mask, and one of
another run, round or client fits nowhere else. Who lacks the mask key guesses a tag with probability 2^-128.
"""

import hmac
from typing import NamedTuple

from fedmf.randomness import SecretKey

TAG_BYTES = 16


class Turn(NamedTuple):
    """What a reply answers: the task of `client` in `step` of `epoch` (both 0-based) of the Flower run number `run`."""

    run: int
    epoch: int
    step: int
    client: str


def with_tag(values: bytes, mask_key: SecretKey, turn: Turn) -> bytes:
    """Return a client's values with their tag behind them.

    >>> len(with_tag(bytes(8), SecretKey.reproducible(0), Turn(run=1, epoch=0, step=2, client="7")))
    24
    """
    return values + _tag(values, mask_key, turn)


def without_tag(data: object, mask_key: SecretKey, turn: Turn) -> bytes | None:
    """Return the values that a client of the task `turn` sent; None for anything of another task or under another key.

    Never raises for any `data`. Tags are compared in constant time, and nobody is told that one failed: such a reply
    counts as any malformed one does.
    """
    if not isinstance(data, bytes) or len(data) < TAG_BYTES:
        return None
    values, tag = data[:-TAG_BYTES], data[-TAG_BYTES:]
    return values if hmac.compare_digest(tag, _tag(values, mask_key, turn)) else None


def _tag(values: bytes, mask_key: SecretKey, turn: Turn) -> bytes:
    key = mask_key.derive("reply tag", *turn)
    return hmac.digest(key.reveal(), values, "sha256")[:TAG_BYTES]
