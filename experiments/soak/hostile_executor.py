"""The executor of a node that lies: what an honest one would answer, spoilt in one of five ways, round by round."""

import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from experiments.deployment import executor_process, resident
from experiments.soak import witness
from fedmf.randomness import SecretKey
from fedmf.updates import wire
from fedmf.updates.tags import TAG_BYTES, Turn, with_tag

TOLD = "SOAK_LIES_FILE"  # variable: the file that grows by a byte with each reply that is a lie
MANY = 10**9  # clients that it says it holds


def say_nothing() -> None:
    """Tell nobody of a lie."""


def lying(honest: ClientApp, has_lied: Callable[[], None] = say_nothing) -> ClientApp:
    """Return an app that asks `honest` and spoils what it says; `has_lied` is called for each reply that it spoilt."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        reply = spoilt(message, honest(message, context))
        if not reply.has_error():
            has_lied()
        return reply

    @app.query()
    def query(message: Message, context: Context) -> Message:
        answer = honest(message, context)
        answer.content.config_records[wire.HELD][wire.CLIENTS] = MANY
        return answer

    return app


def spoilt(message: Message, reply: Message) -> Message:
    """Return `reply`, spoilt in the way whose turn it is in this round; an error reply stays one."""
    if reply.has_error():
        return reply
    group = message.metadata.group_id
    way = LIES[int(group) % len(LIES)] if group.isdecimal() else LIES[0]
    values: Any = reply.content.config_records[wire.UPDATE][wire.VALUES]
    reply.content.config_records[wire.UPDATE] = ConfigRecord({wire.VALUES: way(message, list(values))})
    return reply


def _not_numbers(message: Message, values: Sequence[bytes]) -> list[bytes]:
    """Values that are no numbers, with the tag that the node's own key gives them: malformed, and nobody else's."""
    return _tagged(message, [struct.pack("<f", float("nan")) * (_size(data) // 4) for data in values])


def _too_long(message: Message, values: Sequence[bytes]) -> list[bytes]:
    """A number too many for each client, with the right tag."""
    return _tagged(message, [bytes(_size(data) + 4) for data in values])


def _wrong_tags(message: Message, values: Sequence[bytes]) -> list[bytes]:
    """Other numbers within the bounds, each client's with one bit of their tag another: who takes them moves the sum."""
    tagged = _tagged(message, [_others(data) for data in values])
    return [data[:-1] + bytes([data[-1] ^ 1]) for data in tagged]


def _other_task(message: Message, values: Sequence[bytes]) -> list[bytes]:
    """Other numbers within the bounds with the right key, as those of another round: who takes them moves the sum."""
    return _tagged(message, [_others(data) for data in values], later=1)


def _other_number(message: Message, values: Sequence[bytes]) -> list[bytes]:
    """A client more than was asked for."""
    return [*values, values[-1]]


LIES: tuple[Callable[[Message, Sequence[bytes]], list[bytes]], ...] = (
    _not_numbers,
    _too_long,
    _wrong_tags,
    _other_task,
    _other_number,
)


def _size(data: bytes) -> int:
    """Return the bytes of the values, without their tag."""
    return max(0, len(data) - TAG_BYTES)


def _others(data: bytes) -> bytes:
    """Return the values, without their tag, with another sign: every float32, or every fourth int8."""
    values = bytearray(data[: _size(data)])
    values[3::4] = bytes(byte ^ 0x80 for byte in values[3::4])
    return bytes(values)


def _tagged(message: Message, values: Sequence[bytes], later: int = 0) -> list[bytes]:
    """Return each client's `values` with the tag of its task, or of that `later` rounds on."""
    task = message.content.config_records[wire.TASK]
    turns = (
        Turn(message.metadata.run_id, int(task[wire.EPOCH]), int(task[wire.STEP]) + later, str(client))  # type: ignore[arg-type]
        for client in task[wire.CLIENT]  # type: ignore[union-attr]
    )
    keys = (SecretKey(bytes(key)) for key in task[wire.MASK_KEY])  # type: ignore[arg-type, union-attr]
    return [with_tag(data, key, turn) for data, key, turn in zip(values, keys, turns, strict=True)]


def main() -> None:
    """Play tasks as an honest executor does, and spoil the answers; what it is given is noted as by a witness."""
    witness.install()
    honest, file = resident.Resident.app, Path(os.environ[TOLD])

    def has_lied() -> None:
        with file.open("ab") as told:
            told.write(b".")

    resident.Resident.app = lambda self: lying(honest(self), has_lied)  # type: ignore[method-assign]
    executor_process.main()


if __name__ == "__main__":
    os.umask(0o077)
    main()
