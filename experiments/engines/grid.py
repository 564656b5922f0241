"""A Flower Grid on this machine: the same ServerApp and ClientApp as in a deployment, without transport.

Uses two private parts of Flower (TaskIdentity, message ids), here only; tests/experiments/engines/test_local_grid.py
names the versions they were checked with. One node stands for all clients; a `Worker` computes its replies.
"""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from client.reasons import reason
from fedmf.errors import DeviceLostError, RunStoppedError
from fedmf.updates import wire

RUN_ID, NODE_ID = 1, 1
CLIENT_APP_RAISED = 2  # Flower's error code for it


@dataclass(frozen=True)
class Failure:
    """A client whose update counts as zero, and why.

    A reply contains masked values and nothing else, and so does every file of a run: failures take another way, from
    the client app to `noted`, from there with a worker's result to the process of the server, whose user is told.
    """

    client: str
    reason: str


OnFailure = Callable[[Failure], None]

noted: list[Failure] = []  # in this process, since they were last taken


def note(client: str, error: BaseException) -> None:
    """Note a client that could not train: the `on_failure` of a simulation's client apps."""
    noted.append(Failure(client, reason(error)))


def take_noted() -> list[Failure]:
    """Return what has been noted in this process, and forget it."""
    taken, noted[:] = list(noted), []
    return taken


def clients_of(message: Message) -> list[str]:
    """Return the clients that a message has tasks for."""
    task = message.content.config_records.get(wire.TASK)
    return [] if task is None else wire.entries(task, wire.CLIENT)


class Worker(Protocol):
    """Computes the replies to tasks, in any order and at any time between `submit` and `collect`."""

    def submit(self, messages: list[Message]) -> None:
        """Take tasks that carry their message ids."""

    def collect(self, message_ids: list[str]) -> list[Message]:
        """Return replies to some of `message_ids`, each once, waiting for the first; an empty list: none will come."""


class InProcessWorker:
    """Calls the ClientApp in this process, one task for each `collect`, so that one reply is held at a time."""

    def __init__(self, client_app: ClientApp) -> None:
        self._client_app = client_app
        self._context = local_context()
        self._pending: dict[str, Message] = {}

    def submit(self, messages: list[Message]) -> None:
        """Keep the tasks until their replies are asked for."""
        self._pending |= {message.metadata.message_id: message for message in messages}

    def collect(self, message_ids: list[str]) -> list[Message]:
        """Return the reply to the first of `message_ids` that is pending."""
        for message_id in message_ids:
            if message_id in self._pending:
                return [call_app(self._client_app, self._pending.pop(message_id), self._context)]
        return []


class LocalGrid(Grid):
    """The Grid of one node whose replies come from `worker`.

    `on_failure` receives each client that could not train or whose reply is an error, before its reply is returned.
    """

    def __init__(self, worker: Worker, on_failure: OnFailure | None = None) -> None:
        set_identity()
        self._worker = worker
        self._on_failure = on_failure
        self._asked: dict[str, list[str]] = {}  # clients of the messages of a round
        self._ids = itertools.count(1)
        # Whether no reply can come any more: `server.exchange` then need not wait for its deadline.
        self.is_exhausted = False

    def set_run(self, run: Run) -> None:
        """Do nothing: this grid serves one run."""

    @property
    def run(self) -> Run:
        """An empty run with this grid's id."""
        return Run.create_empty(RUN_ID)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a message to a node."""
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Return the one node."""
        return [NODE_ID]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Number the messages and hand them to the worker; returns their ids."""
        pushed = list(messages)
        for message in pushed:
            message.metadata.__dict__["_message_id"] = f"{next(self._ids):012d}"
        self._asked = {message.metadata.message_id: clients_of(message) for message in pushed}
        self._worker.submit(pushed)
        self.is_exhausted = False
        return [message.metadata.message_id for message in pushed]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the next replies to some of `message_ids`."""
        replies = self._worker.collect(list(message_ids))
        failures = take_noted()
        for reply in (reply for reply in replies if reply.has_error()):
            clients = self._asked.pop(reply.metadata.reply_to_message_id, [])
            failures += [Failure(client, str(reply.error.reason)) for client in clients]
        if self._on_failure is not None:
            for failure in failures:
                self._on_failure(failure)
        self.is_exhausted = not replies
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Return the replies to all messages."""
        awaited, replies = set(self.push_messages(messages)), []
        while arrived := self.pull_messages(sorted(awaited)):
            replies += arrived
            awaited -= {reply.metadata.reply_to_message_id for reply in arrived}
        return replies


def call_app(client_app: ClientApp, message: Message, context: Context) -> Message:
    """Return the ClientApp's reply; as in Flower's own engines, an exception becomes an error reply.

    Raises two only: `DeviceLostError`, where no task can be answered any more in this process, and `RunStoppedError`,
    where no process can begin that would answer it.
    """
    try:
        return client_app(message, context)
    except (DeviceLostError, RunStoppedError):
        raise
    except (Exception, SystemExit) as error:
        return Message(Error(code=CLIENT_APP_RAISED, reason=type(error).__name__), reply_to=message)


def set_identity() -> None:
    """Tell Flower who this process is; messages cannot be made before."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN_ID, NODE_ID


def local_context() -> Context:
    """Return an empty Flower context for apps that run on this machine."""
    return Context(RUN_ID, NODE_ID, {}, RecordDict(), {})


def run_locally(server_app: ServerApp, worker: Worker, on_failure: OnFailure | None = None) -> None:
    """Run a ServerApp against the clients that `worker` runs, and restore this process's identity afterwards.

    `on_failure` as in `LocalGrid`.
    """
    before = TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id
    take_noted()  # of a run that was cut off in this process
    try:
        server_app(LocalGrid(worker, on_failure), local_context())
    finally:
        TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id = before
