"""Clients that fall silent, answer late, twice or with an error: a `Worker` around another, for fault injection."""

from collections import Counter

from flwr.app import Error, Message

from experiments.engines.grid import CLIENT_APP_RAISED, Worker, clients_of
from experiments.settings.engine import Faults
from fedmf.randomness import PublicSeed
from fedmf.updates import wire


class FaultyWorker:
    """Passes tasks on to `worker` and spoils replies.

    What happens to a task depends on the public seed, its client, epoch, step and attempt: a resumed run meets
    the same faults.
    """

    def __init__(self, worker: Worker, faults: Faults, seed: PublicSeed) -> None:
        self._worker = worker
        self._faults = faults
        self._seed = seed
        self._attempts: Counter[tuple[str, int, int]] = Counter()
        self._fates: dict[str, tuple[str, bool]] = {}
        self._late: list[Message] = []
        self._arriving: list[Message] = []

    def submit(self, messages: list[Message]) -> None:
        """Decide each task's fate and hand on those that reach their client, in another order."""
        self._fates = {message.metadata.message_id: self._decide(message) for message in messages}
        self._arriving, self._late = self._late, []
        errors = [message for message in messages if self._fate(message) == "error"]
        self._arriving += [
            Message(Error(CLIENT_APP_RAISED, "rehearsed"), reply_to=message) for message in errors
        ]
        self._worker.submit([m for m in reversed(messages) if self._fate(m) in ("answer", "late")])

    def collect(self, message_ids: list[str]) -> list[Message]:
        """Return the next replies; late ones of the last round come first."""
        arrived, self._arriving = self._arriving, []
        while not arrived and (replies := self._worker.collect(message_ids[::-1])):
            for reply in replies:
                fate, twice = self._fates[reply.metadata.reply_to_message_id]
                (self._late if fate == "late" else arrived).append(reply)
                arrived += [reply] if twice and fate != "late" else []
        return arrived

    def _decide(self, message: Message) -> tuple[str, bool]:
        """Return the fate of a task and whether its reply comes twice."""
        task = message.content.config_records[wire.TASK]
        (client,) = clients_of(message)  # with faults each client has a message of its own
        where = (client, int(task[wire.EPOCH]), int(task[wire.STEP]))  # type: ignore[arg-type]
        self._attempts[where] += 1
        fate, twice = self._seed.generator("faults", *where, self._attempts[where]).random(2)
        return self._faults.outcome(fate), bool(twice < self._faults.duplicate)

    def _fate(self, message: Message) -> str:
        return self._fates[message.metadata.message_id][0]
