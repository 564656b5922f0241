"""Which clients of a simulation could not train, told to this machine's user beside the replies.

A reply holds masked values and nothing else, and so does every file of a run. What is noted here goes by another way:
from the client app to a list of its process, from there with a worker's result, and to whoever counts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, Context, Message

from client.reasons import reason
from experiments.players.progress import ClientCount
from fedmf.updates import wire


@dataclass(frozen=True)
class Failure:
    """A client whose update counts as zero, and why; `has_sent`: it sent the zeros itself, else its reply is an error."""

    client: str
    reason: str
    has_sent: bool = True


_FIELDS = ("client", "reason", "has_sent")

OnFailure = Callable[[Failure], None]


def ignore_failure(failure: Failure) -> None:
    """Count nothing."""


_noted: list[Failure] = []  # in this process, since they were last taken


def note(client: str, error: BaseException) -> None:
    """Note a client that could not train: the `on_failure` of a simulation's client apps."""
    _noted.append(Failure(client, reason(error)))


def note_again(failures: Sequence[Failure]) -> None:
    """Note what another process had noted."""
    _noted.extend(failures)


def take_noted() -> list[Failure]:
    """Return what has been noted in this process, which then is forgotten."""
    taken, _noted[:] = list(_noted), []
    return taken


def played_with_failures(
    play: Callable[[Message, Context], Message], message: Message, context: Context
) -> tuple[Message, list[Failure]]:
    """Return `play(message, context)` and what it noted, for the process that asked."""
    return play(message, context), take_noted()


_FAILED = "failed"  # a private record of a reply, which the strategy does not get to see


def with_failures(reply: Message, failures: Sequence[Failure]) -> Message:
    """Return `reply` with a record of the clients that failed, for `without_failures` to take out again."""
    if failures and reply.has_content():
        fields = {name: [getattr(failure, name) for failure in failures] for name in _FIELDS}
        reply.content[_FAILED] = ConfigRecord({**fields})
    return reply


def without_failures(reply: Message) -> list[Failure]:
    """Take the record of `with_failures` out of `reply`, and return what it held."""
    if not reply.has_content() or _FAILED not in reply.content:
        return []
    record: Any = reply.content.config_records[_FAILED]
    del reply.content[_FAILED]
    return list(map(Failure, *(record[name] for name in _FIELDS)))


class Witness:
    """Tells `on_failure` of the clients of a grid's messages that failed or whose reply is an error.

    `count` is told of how many clients messages were answered, whatever the answers are.
    """

    def __init__(self, on_failure: OnFailure, count: ClientCount | None = None) -> None:
        self._on_failure = on_failure
        self._count = count or ClientCount()
        self._clients: dict[str, list[str]] = {}

    def asked(self, messages: Sequence[Message]) -> None:
        """Remember whose tasks the messages of a round carry."""
        tasks = {message.metadata.message_id: clients_of(message) for message in messages}
        if any(tasks.values()):  # not a query
            self._clients = tasks
            self._count.asked(sum(map(len, tasks.values())))

    def heard(self, replies: Sequence[Message], failures: Sequence[Failure]) -> None:
        """Tell of `failures`, and of the clients behind error replies."""
        for failure in failures:
            self._on_failure(failure)
        for reply in replies:
            clients = self._clients.pop(reply.metadata.reply_to_message_id, [])
            self._count.heard(len(clients))
            for client in clients if reply.has_error() else ():
                self._on_failure(Failure(client, str(reply.error.reason), has_sent=False))


def clients_of(message: Message) -> list[str]:
    """Return the clients that a message has tasks for."""
    task = message.content.config_records.get(wire.TASK)
    return [] if task is None else wire.entries(task, wire.CLIENT)
