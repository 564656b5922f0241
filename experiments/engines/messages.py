"""Messages of several clients cut into parts for several processes, and the parts' replies made one again.

A part travels without the model, which all parts of a round share. The reply to a message is what its client app would
have answered: each client's kept values on their own.
"""

import math
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field

from flwr.app import ConfigRecord, Message, RecordDict

from client.app import pack
from experiments.engines.failures import Failure, clients_of
from fedmf.updates import wire

# A round's messages for each worker: what is answered is added up while others still train.
MESSAGES_A_WORKER = 4

_OF_A_CLIENT = (wire.CLIENT, wire.MASK_KEY)


def clients_a_message(cohort_size: int, workers: int, most: int) -> int:
    """Return how many clients of a round share a message, at most `most`, for `MESSAGES_A_WORKER`."""
    return min(most, math.ceil(cohort_size / (MESSAGES_A_WORKER * workers)))


@dataclass(frozen=True)
class Part:
    """The clients at `places` of the message `whole`."""

    whole: Message
    places: range

    def alone(self) -> "list[Part]":
        """Return each client as a part of its own."""
        return [Part(self.whole, range(place, place + 1)) for place in self.places]

    def message(self, *, with_model: bool) -> Message:
        """Return the part as a message of its own, under the id of the whole."""
        records = dict(self.whole.content.items())
        if not with_model:
            records.pop(wire.MODEL, None)
        if len(clients_of(self.whole)) > 1:
            records[wire.TASK] = self._task()
        part = copy(self.whole)
        part.content = RecordDict(records)
        return part

    def _task(self) -> ConfigRecord:
        """Return the record of the part's clients, and of what all clients share."""
        given = self.whole.content.config_records[wire.TASK]
        own = slice(self.places.start, self.places.stop)
        mine = {name: wire.entries(given, name)[own] for name in _OF_A_CLIENT}
        return ConfigRecord({**given, **mine})


def guided(messages: Sequence[Message], workers: int) -> Iterator[list[Part]]:
    """Yield the clients of `messages`, in order, in chunks for `workers` processes.

    Each chunk is half of a worker's share of what is left (guided self-scheduling, Polychronopoulos and Kuck 1987): few
    chunks, and single clients at the end, so that no process waits long for another.
    """
    counts = [max(1, len(clients_of(message))) for message in messages]
    left, chunk, room = sum(counts), list[Part](), 0
    for message, count in zip(messages, counts, strict=True):
        start = 0
        while start < count:
            room = room or max(1, left // (2 * workers))
            taken = min(room, count - start)
            chunk.append(Part(message, range(start, start + taken)))
            start, room, left = start + taken, room - taken, left - taken
            if room == 0:
                yield chunk
                chunk = []
    if chunk:
        yield chunk


@dataclass
class Gathering:
    """The reply to `whole`, as the replies to its parts come in."""

    whole: Message
    failures: list[Failure] = field(default_factory=list)  # clients without values, of a message of several
    _values: dict[int, bytes] = field(default_factory=dict)  # of the clients at their places
    _heard: int = 0

    def add(self, part: Part, reply: Message) -> Message | None:
        """Take the reply to a part; return that to the whole message once it is complete."""
        names = clients_of(self.whole)
        if len(names) <= 1:
            return reply
        self._heard += len(part.places)
        if reply.has_error():  # these clients have no values, which counts as an error of theirs alone
            reason = str(reply.error.reason)
            self.failures += [Failure(names[place], reason) for place in part.places]
        else:
            values = wire.entries(reply.content.config_records[wire.UPDATE], wire.VALUES)
            self._values |= zip(part.places, values, strict=True)
        if self._heard < len(names):
            return None
        return pack([self._values.get(place, wire.NO_VALUES) for place in range(len(names))], self.whole)
