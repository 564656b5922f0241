"""A reader for serialised tf.train.Example messages, which TFF's sqlite files hold one to a row.

The messages (protobuf wire format; field numbers from TensorFlow's example.proto and feature.proto):

    Example   { Features features = 1 }
    Features  { map<string, Feature> feature = 1 }      an entry is { string key = 1; Feature value = 2 }
    Feature   { BytesList = 1 | FloatList = 2 | Int64List = 3 }      each { repeated value = 1 }, maybe packed
"""

from collections.abc import Iterator

import numpy as np

from client.data.reading import reading
from fedmf.errors import DataError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
BYTES_LIST, FLOAT_LIST, INT64_LIST = 1, 2, 3


def read_example(message: bytes) -> dict[str, list[bytes] | np.ndarray]:
    """Return the features of one message: lists of bytes, float32 [n] or int64 [n] by feature name.

    Raises `DataError` for bytes that are not such a message.

    >>> read_example(bytes.fromhex("0a0d0a0b0a01781206 1a040a02 0503".replace(" ", "")))
    {'x': array([5, 3])}
    """
    features = {}
    for features_number, features_message in fields(message):
        if features_number == 1:
            for entry_number, entry in fields(_message(features_message)):
                if entry_number == 1:
                    parts = dict(fields(_message(entry)))
                    with reading("A stored example", "a tf.train.Example"):
                        name = _message(parts.get(1, b"")).decode()
                    features[name] = _feature(_message(parts.get(2, b"")))
    return features


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (field number, value) of a message: an int for a varint, the raw bytes for everything else."""
    position = 0
    while position < len(message):
        tag, position = varint(message, position)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, position = varint(message, position)
            yield number, value
            continue
        if kind == BYTES:
            size, position = varint(message, position)
        elif kind in (FIXED32, FIXED64):
            size = 4 if kind == FIXED32 else 8
        else:
            raise DataError(f"A stored example holds the wire type {kind}; it is no tf.train.Example.")
        if position + size > len(message):
            raise DataError("A stored example ends in the middle of a field; it is no tf.train.Example.")
        yield number, message[position : position + size]
        position += size


def varint(message: bytes, position: int) -> tuple[int, int]:
    """Return (value, position behind it) of a number in groups of seven bits, the lowest first.

    >>> varint(bytes([0xAC, 0x02]), 0)
    (300, 2)
    """
    value = 0
    for shift in range(0, 64, 7):
        if position >= len(message):
            raise DataError("A stored example ends in the middle of a number; it is no tf.train.Example.")
        byte = message[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
    raise DataError("A stored example holds a number of more than 64 bits; it is no tf.train.Example.")


def _message(value: int | bytes) -> bytes:
    """Return a field that must be a message or a string."""
    if isinstance(value, int):
        raise DataError("A stored example holds a number where a message belongs; it is no tf.train.Example.")
    return value


def _feature(message: bytes) -> list[bytes] | np.ndarray:
    """Return the values of one Feature."""
    for number, body in fields(message):
        if number == BYTES_LIST:
            return [_message(value) for _, value in fields(_message(body))]
        if number == FLOAT_LIST:
            packed = b"".join(_message(value) for _, value in fields(_message(body)))
            with reading("A stored example", "a tf.train.Example"):  # if its numbers have not four bytes each
                return np.frombuffer(packed, dtype="<f4").astype(np.float32)
        if number == INT64_LIST:
            return _integers(_message(body))
    return []


def _integers(message: bytes) -> np.ndarray:
    """Return the values of an Int64List; negative numbers are stored modulo 2^64."""
    values: list[int] = []
    for _, value in fields(message):
        if isinstance(value, int):
            values.append(value)
            continue
        position = 0
        while position < len(value):
            number, position = varint(value, position)
            values.append(number)
    with reading("A stored example", "a tf.train.Example"):  # ten groups of bits hold more than 64
        return np.array(values, dtype=np.uint64).astype(np.int64)
