"""A Flower Grid on this machine: the same ServerApp and ClientApp as in a deployment, without transport.

One node stands for all clients; a `Worker` computes its replies.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from client.app import Observed
from client.imports import reason
from experiments.settings.groups import Faults
from fedmf.errors import DeviceLostError
from fedmf.randomness import PublicSeed
from fedmf.updates import wire
from server import flower_private

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


Note = Failure | Observed
OnNote = Callable[[Note], None]

noted: list[Note] = []  # in this process, since they were last taken


def note(client: str, error: BaseException) -> None:
    """Note a client that could not train: the `on_failure` of a simulation's client apps."""
    noted.append(Failure(client, reason(error)))


def take_noted() -> list[Note]:
    """Return what has been noted in this process, and forget it."""
    taken, noted[:] = list(noted), []
    return taken


def clients_of(message: Message) -> list[str]:
    """Return the clients that a message has tasks for."""
    task = message.content.config_records.get(wire.TASK)
    return [] if task is None else list(task[wire.CLIENT])  # type: ignore[arg-type]


class Worker(Protocol):
    """Computes the replies to tasks, in any order and at any time between `submit` and `collect`."""

    def submit(self, messages: list[Message]) -> None:
        """Take tasks that carry their message ids."""

    def collect(self, message_ids: list[str]) -> list[Message]:
        """Return replies to some of `message_ids`, each once, waiting for the first; an empty list: none will come."""


class InProcessWorker:
    """Calls the ClientApp in this process, one task for each `collect`, so that one reply is held at a time.

    Where this process has lost its device `make_other()`, a worker of other processes, answers that message and all later ones.
    """

    def __init__(self, client_app: ClientApp, make_other: Callable[[], Worker] | None = None) -> None:
        self._client_app, self._make_other = client_app, make_other
        self._context = local_context()
        self._pending: dict[str, Message] = {}
        self._other: Worker | None = None

    def submit(self, messages: list[Message]) -> None:
        if self._other is not None:
            self._other.submit(messages)
        else:
            self._pending |= {message.metadata.message_id: message for message in messages}

    def collect(self, message_ids: list[str]) -> list[Message]:
        """Return the reply to the first of `message_ids` that is pending. Raises what `call_app` raises without `make_other`."""
        if first := next((one for one in message_ids if one in self._pending), None):
            try:
                reply = call_app(self._client_app, self._pending[first], self._context)
            except DeviceLostError:
                if self._make_other is None:
                    raise
                take_noted()  # of a message that is run again
                self._other = self._make_other()
                self._other.submit([*self._pending.values()])
                self._pending = {}
            else:
                del self._pending[first]
                return [reply]
        return [] if self._other is None else self._other.collect(message_ids)


class FaultyWorker:
    """Passes tasks on to `worker` and spoils replies: clients fall silent, answer late, twice or with an error.

    What happens to a task depends on the public seed, its client, epoch, step and attempt: a resumed run meets
    the same faults.
    """

    def __init__(self, worker: Worker, faults: Faults, seed: PublicSeed) -> None:
        self._worker, self._faults, self._seed = worker, faults, seed
        self._attempts: Counter[tuple[str, int, int]] = Counter()
        self._outcomes: dict[str, tuple[str, bool]] = {}
        self._late: list[Message] = []
        self._arriving: list[Message] = []

    def submit(self, messages: list[Message]) -> None:
        """Draw what happens to each task, and pass on those that reach their client, in another order."""
        self._outcomes = {message.metadata.message_id: self._draw(message) for message in messages}
        self._arriving, self._late = self._late, []
        passed = []
        for message in reversed(messages):
            outcome, _ = self._outcomes[message.metadata.message_id]
            if outcome == "error":
                self._arriving.append(Message(Error(CLIENT_APP_RAISED, "rehearsed"), reply_to=message))
            elif outcome != "silent":
                passed.append(message)
        self._worker.submit(passed)

    def collect(self, message_ids: list[str]) -> list[Message]:
        """Return the next replies; late ones of the last round come first."""
        arrived, self._arriving = self._arriving, []
        while not arrived and (replies := self._worker.collect(message_ids[::-1])):
            for reply in replies:
                outcome, twice = self._outcomes[reply.metadata.reply_to_message_id]
                if outcome == "late":
                    self._late.append(reply)
                else:
                    arrived += [reply] * (1 + twice)
        return arrived

    def _draw(self, message: Message) -> tuple[str, bool]:
        task = message.content.config_records[wire.TASK]
        (client,) = clients_of(message)  # with faults each client has a message of its own
        where = (client, int(task[wire.EPOCH]), int(task[wire.STEP]))  # type: ignore[arg-type]
        self._attempts[where] += 1
        outcome, twice = self._seed.generator("faults", *where, self._attempts[where]).random(2)
        return self._faults.outcome(outcome), bool(twice < self._faults.duplicate)


class LocalGrid(Grid):
    """The Grid of one node whose replies come from `worker`.

    `on_note` receives each client that could not train or whose reply is an error, and in a run with unprotected metrics each
    turn, before the reply is returned.
    """

    def __init__(self, worker: Worker, on_note: OnNote = lambda note: None) -> None:
        set_identity()
        self._worker = worker
        self._on_note = on_note
        self._asked: dict[str, list[str]] = {}  # clients of the messages of a round
        self._ids = itertools.count(1)
        # Whether no reply can come any more: `server.exchange` then need not wait for its deadline.
        self.is_exhausted = False

    def set_run(self, run: flower_private.Run) -> None:
        """Do nothing: this grid serves one run."""

    @property
    def run(self) -> flower_private.Run:
        return flower_private.Run.create_empty(RUN_ID)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> Iterable[int]:
        return [NODE_ID]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        pushed = list(messages)
        for message in pushed:
            vars(message.metadata)[flower_private.MESSAGE_ID] = f"{next(self._ids):012d}"
        self._asked = {message.metadata.message_id: clients_of(message) for message in pushed}
        self._worker.submit(pushed)
        self.is_exhausted = False
        return [message.metadata.message_id for message in pushed]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = self._worker.collect(list(message_ids))
        failures: list[Note] = [
            Failure(client, str(reply.error.reason))
            for reply in replies
            if reply.has_error()
            for client in self._asked.pop(reply.metadata.reply_to_message_id, [])
        ]
        for each in [*take_noted(), *failures]:
            self._on_note(each)
        self.is_exhausted = not replies
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        awaited, replies = set(self.push_messages(messages)), []
        while arrived := self.pull_messages(sorted(awaited)):
            replies += arrived
            awaited -= {reply.metadata.reply_to_message_id for reply in arrived}
        return replies


def call_app(client_app: ClientApp, message: Message, context: Context) -> Message:
    """Return the ClientApp's reply; as in Flower's own engines, an exception becomes an error reply.

    Raises `DeviceLostError` alone, where no task can be answered any more in this process.
    """
    try:
        return client_app(message, context)
    except DeviceLostError:
        raise
    except (Exception, SystemExit) as error:
        return Message(Error(code=CLIENT_APP_RAISED, reason=type(error).__name__), reply_to=message)


def set_identity() -> None:
    """Tell Flower who this process is; messages cannot be made before."""
    flower_private.set_identity(RUN_ID, NODE_ID)


def local_context() -> Context:
    """Return an empty Flower context for apps that run on this machine."""
    return Context(RUN_ID, NODE_ID, {}, RecordDict(), {})


def run_locally(server_app: ServerApp, worker: Worker, on_note: OnNote = lambda note: None) -> None:
    """Run a ServerApp against the clients that `worker` runs, and restore this process's identity afterwards.

    `on_note` as in `LocalGrid`.
    """
    take_noted()  # of a run that was cut off in this process
    with flower_private.kept_identity():
        server_app(LocalGrid(worker, on_note), local_context())
