"""What travels: the names of message parts and fields, the bytes of a masked update, and their tag.

A task goes down (the model once, and who, when and under which key); a reply comes back: the kept values
only, in increasing order of their coordinates, and a tag after them. The coordinates never travel: both sides draw them
from the mask key. A message may carry the tasks of several clients of one node: a field holds a list with an entry for
each, and so do the values in the reply, every client's separately and under their own mask.

The tag tells the server that values answer its own task. Flower 1.41 takes a reply from any registered node that knows
the id of a message, and its logs contain ids. What binds a reply to its task is the mask key, which the server sends to
the client's node alone. (A registered node that learns the task's id while the SuperLink stores the task can fetch it too:
docs/deployment.md, "Trust".)

    K   = HMAC-SHA256(mask key, "reply tag", run, epoch, step, client)
    tag = the first 16 bytes of HMAC-SHA256(K, values)

K is derived by `SecretKey.derive`, whose purpose and position are encoded without ambiguity, and it is no other key: the
mask itself depends on the purpose "coordinates", rounding on "rounding". So a tag reveals nothing about a mask, and one of
another run, round or client fits nowhere else. Without the mask key a tag is guessed with probability 2^-128.
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedmf.errors import SettingError
from fedmf.randomness import SecretKey
from fedmf.updates.masks import coordinates as coordinates
from fedmf.updates.vectors import TAU, Vector, clip_l2, clip_linf, dequantize, l2_norm

# ArrayRecord of a message: the flat model under key VECTOR; under key SCALE, if there, what updates are scaled by.
MODEL = "model"
# ConfigRecord of a message: EPOCH, STEP, FIXED where part of the model does not train (a public digest of that part, so
# that no client trains on top of another), and lists of CLIENT and MASK_KEY with an entry for each client
TASK = "task"
UPDATE = "update"  # ConfigRecord of a reply: VALUES, a list of the bytes of each client's kept values and their tag; NO_VALUES for who sent none
# With an adaptive clip norm a byte, 0 or 1, is between values and tag: whether the update was no longer than the norm.
# ConfigRecord of a deployment's messages: asked with DIGEST_KEY, a node answers a query with how many CLIENTS it holds,
# and every message with a DIGEST of who they are, tasks also with ANSWERED, the last round of the epoch (from 1, 0 for none)
# whose tasks it had answered before. READY false: its data could not be loaded when it started. OTHER_CODE true,
# and nothing else in the whole reply: the code installed there is not the run's, and nothing of a client was looked at.
HELD = "held"
CLIENTS, DIGEST, DIGEST_KEY, READY, OTHER_CODE = "clients", "digest", "digest-key", "ready", "other-code"
ANSWERED = "answered"
VECTOR, SCALE = "vector", "scale"
VALUES = "values"
NO_VALUES = b""
STYPE = "fedmf.little-endian"  # how arrays are written: bare values, no header, nothing to parse
CLIENT, EPOCH, STEP, MASK_KEY, FIXED = "client", "epoch", "step", "mask-key", "fixed"

_DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "int8": np.dtype("i1")}
TAG_BYTES = 16
_TAG = "reply tag"
# Message header, record names and tag of one reply, as Flower 1.41 serialises it; a test measures it.
ENVELOPE_BYTES = 375 + TAG_BYTES

_SMALLEST_NORM, _LARGEST_NORM = 1e-20, 1e20  # far from where float32 over- or underflows

Values = np.typing.NDArray[np.float32] | np.typing.NDArray[np.int8]


@dataclass(frozen=True)
class Bounds:
    """What a client's rotated vector is held to, in units of the update; None where nothing is enforced.

    `radius` is what the accountant uses as Delta_2: with int8 values it is (1 + TAU) times the clip norm.
    """

    l2_norm: float | None
    linf_norm: float | None
    value_type: str = "float32"

    def __post_init__(self) -> None:
        for name, norm in (("l2_norm", self.l2_norm), ("linf_norm", self.linf_norm)):
            if norm is not None and not _SMALLEST_NORM <= norm <= _LARGEST_NORM:
                raise SettingError(
                    f"{name} is {norm}; float32 values need it in [{_SMALLEST_NORM:g}, {_LARGEST_NORM:g}]."
                )

    @property
    def radius(self) -> float | None:
        """The L2 norm that no client's vector exceeds, or None."""
        if self.l2_norm is None:
            return None
        return self.l2_norm * (1 + TAU) if self.value_type == "int8" else self.l2_norm


def to_bytes(values: Values) -> bytes:
    """Return float32 or int8 values as little-endian bytes, without any header."""
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()


def to_vector(data: bytes) -> Vector:
    """Return little-endian float32 bytes as a read-only vector, without a copy."""
    return np.frombuffer(data, _DTYPES["float32"])


def decode(data: object, bounds: Bounds, *, kept: int) -> Vector:
    """Return a reply's bytes, without their tag, as (kept,) float32 within `bounds`; what is malformed counts as the zero vector.

    Another type or length, or a non-finite value, gives zeros; what exceeds a bound is clipped to it, so that
    no client moves the sum further than its bound. Never raises for any `data`: one client's data must not
    decide whether a round is released.
    """
    dtype = _DTYPES[bounds.value_type]
    if not isinstance(data, bytes) or len(data) != kept * dtype.itemsize:
        return np.zeros(kept, np.float32)
    values = np.frombuffer(data, dtype)
    if bounds.value_type == "int8":
        assert bounds.linf_norm is not None  # make_bounds refuses int8 without bounds
        values = dequantize(values, bounds.linf_norm)
    largest = float(max(values.max(initial=0), -values.min(initial=0)))  # NaN where one is: both pass it on
    if not np.isfinite(largest):
        return np.zeros(kept, np.float32)
    if bounds.linf_norm is not None and largest > bounds.linf_norm:
        values = clip_linf(values, bounds.linf_norm)
    radius = bounds.radius
    if radius is not None and l2_norm(values) > radius:
        values = clip_l2(values, radius)
    return values


def split_bit(data: bytes | None) -> tuple[bytes | None, int]:
    """Return a reply's values and its bit, which the byte behind them is; (None, 0) where that is neither 0 nor 1.

    >>> split_bit(b"values\1"), split_bit(b"values\2"), split_bit(b"")
    ((b'values', 1), (None, 0), (None, 0))
    """
    return (None, 0) if not data or data[-1] > 1 else (data[:-1], data[-1])


def value_bytes(dimension: int, keep_probability: float, value_type: str) -> float:
    """Return the expected bytes of the values one client sends: gamma D times the size of a value."""
    return keep_probability * dimension * _DTYPES[value_type].itemsize


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
    return values + hmac.digest(mask_key.derive(_TAG, *turn).reveal(), values, "sha256")[:TAG_BYTES]


def without_tags(
    sent: Sequence[object], mask_keys: Sequence[SecretKey], turns: Sequence[Turn]
) -> list[bytes | None]:
    """Return the values that the clients of the tasks `turns` sent; None for anything of another task or under another key.

    Never raises for anything that is `sent`. Tags are compared in constant time, and no one is told that one failed: such
    a reply counts as any malformed one does.
    """
    keys = [key.derive(_TAG, *turn).reveal() for key, turn in zip(mask_keys, turns, strict=True)]
    return [
        data[:-TAG_BYTES]
        if isinstance(data, bytes)
        and hmac.compare_digest(data[-TAG_BYTES:], hmac.digest(key, data[:-TAG_BYTES], "sha256")[:TAG_BYTES])
        else None
        for data, key in zip(sent, keys, strict=True)
    ]
