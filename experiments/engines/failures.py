"""Which clients of a simulation could not train, reported to this machine's user apart from the replies.

A reply contains masked values and nothing else, and so does every file of a run. Failures take another way: from the
client app to a list of its process, from there with a worker's result to the process of the server.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flwr.app import Message

from client.reasons import reason
from fedmf.updates import wire


@dataclass(frozen=True)
class Failure:
    """A client whose update counts as zero, and why."""

    client: str
    reason: str


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
    """Return what has been noted in this process, and forget it."""
    taken, _noted[:] = list(_noted), []
    return taken


class FailureTracker:
    """Reports to `on_failure` the clients of a grid's messages that failed or whose reply is an error."""

    def __init__(self, on_failure: OnFailure) -> None:
        self._on_failure = on_failure
        self._clients: dict[str, list[str]] = {}

    def asked(self, messages: Sequence[Message]) -> None:
        """Remember whose tasks the messages of a round carry."""
        tasks = {message.metadata.message_id: clients_of(message) for message in messages}
        if any(tasks.values()):  # not a query
            self._clients = tasks

    def heard(self, replies: Sequence[Message], failures: Sequence[Failure]) -> None:
        """Report `failures`, and the clients behind error replies."""
        for failure in failures:
            self._on_failure(failure)
        for reply in replies:
            clients = self._clients.pop(reply.metadata.reply_to_message_id, [])
            for client in clients if reply.has_error() else ():
                self._on_failure(Failure(client, str(reply.error.reason)))


def clients_of(message: Message) -> list[str]:
    """Return the clients that a message has tasks for."""
    task = message.content.config_records.get(wire.TASK)
    return [] if task is None else wire.entries(task, wire.CLIENT)
