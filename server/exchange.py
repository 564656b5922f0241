"""A round's messages: what they contain, how tasks are sent, how replies are heard.

Replies come from anyone, and are yielded one by one, so that memory does not grow with the cohort. Nothing that reads one raises.

Replies are pulled for one task at a time. Flower unpacks them while pulling, after it has acknowledged them to the
SuperLink: a reply whose bytes cannot be unpacked would lose every other reply of its batch, and one client would
decide whether others are heard.

No node can make a pull longer than the server is willing to wait. Flower 1.41 fetches a reply part by part and waits for
parts that a node has announced and not sent: three minutes for the next one, an hour and a half in all. So every pull is done
in a thread of its own, and one that takes longer than a moment is left to it: the pulls from other nodes continue, and what
has not come when the exchange ends is dropped. From then on no pull from that node is waited for in this exchange. A node
whose replies are each quick and many has an allowance for all of them together. A node has at most one pull at a time, in all
exchanges with a grid together, so that there are no more threads, nor replies in memory, than slow nodes, and one. The price:
a node with a pull of an earlier exchange under way is silent until that is over. Flower takes a reply from any registered
node that knows the id of a message, so that another node can do this to it.

A node that lost its SuperLink while it fetched a task stays one reply behind (seen with Flower 1.41): it holds
each reply back until another message comes, or until it is restarted. A node that does not answer for a while is
therefore sent a query whose answer is discarded.
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import closing, suppress
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import httpx
from flwr.app import Array, ArrayRecord, Error, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedmf.errors import RunStoppedError
from fedmf.plan import Plan
from fedmf.updates import wire
from fedmf.updates.vectors import Vector
from server.flower_private import ObjectPushError

log = logging.getLogger(__name__)

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.01, 0.1  # seconds between two polls when no reply has come
_SLOW = 0.1  # seconds after which a pull is left to itself, and its node is no longer waited for
_LAST_SLOW = 0.05  # the same after the deadline
_GRACE = 0.8  # seconds after the deadline for what is being pulled then
_ALLOWANCE = 1.0  # seconds in an exchange that the others wait for all replies of a node together
_PATIENCE = 30.0  # seconds without any reply before nodes are nudged; doubled after each nudge
LEAST_MESSAGE = 4 << 20  # bytes of values; below this the overhead of a message dominates
_CALLED = 10  # nodes that a line of the log names
_UPLOADS = 3  # how often a message is sent whose upload the SuperLink forgot
_UNREADABLE = 0  # Flower's code for an unknown error
THREAD = "fedmf pull"
_DIGEST = re.compile("[0-9a-f]{64}")

# By grid and node: the pulls that a node keeps waiting, also of exchanges that have ended.
_under_way: WeakKeyDictionary[Grid, "dict[int, _Pull]"] = WeakKeyDictionary()
_ENDED = ""  # the question of a pull whose exchange has ended: what it brings is dropped


def tasks_per_message(plan: Plan) -> int:
    """Return how many clients of a node share a message: as many as keep its reply no larger than the model.

    Then the server holds O(d) values at a time, however large the cohort. (Small models: up to 4 MiB.)
    """
    return max(1, int(max(LEAST_MESSAGE, 4 * plan.dimension) // plan.value_bytes))


def model_record(model: Vector, scale: Vector | None = None) -> ArrayRecord:
    """Return the ArrayRecord of tasks, made once a round and shared by all: the flat model (d,), and what clients scale by."""
    vectors = {wire.VECTOR: model} | ({} if scale is None else {wire.SCALE: scale})
    return ArrayRecord(
        {name: Array("float32", one.shape, wire.STYPE, wire.to_bytes(one)) for name, one in vectors.items()}
    )


def payloads(reply: Message, count: int) -> list[object]:
    """Return the bytes of the values of a message's `count` tasks.

    A value is None for an error or anything malformed, and for a client that sent none.
    """
    try:
        sent = reply.content.config_records[wire.UPDATE][wire.VALUES]
    except Exception:  # whatever a hostile client sends counts as the zero vector
        return [None] * count
    if not isinstance(sent, list) or len(sent) != count:
        return [None] * count
    return [None if data == wire.NO_VALUES else data for data in sent]


class Report(NamedTuple):
    """What a node reports of itself; a field that is missing or malformed in its reply has the value here.

    `clients` is how many it holds, `digest` one of who they are, in order. `answered` is the last round of the epoch
    (1-based) that it had answered before. `is_ready`: whether its data could be loaded when it started.
    `has_other_code`: the code installed there is not the run's, and the reply contains nothing else.
    """

    clients: int | None = None
    digest: str = ""
    answered: int = 0
    is_ready: bool = True
    has_other_code: bool = False


def node_report(reply: Message) -> Report:
    """Return what a node reports in a reply."""
    try:
        held: dict[str, Any] = dict(reply.content.config_records[wire.HELD])
        is_alone = len(reply.content) == len(held) == 1
    except Exception:  # whatever a hostile node sends counts as nothing
        return Report()
    clients, digest, answered = (held.get(name) for name in (wire.CLIENTS, wire.DIGEST, wire.ANSWERED))
    return Report(
        clients if type(clients) is int and clients >= 0 else None,
        digest if type(digest) is str and _DIGEST.fullmatch(digest) else "",
        answered if type(answered) is int else 0,
        held.get(wire.READY) is not False,
        is_alone and held.get(wire.OTHER_CODE) is True,
    )


def pulls_under_way() -> int:
    """Return how many calls to a SuperLink this process waits for now, those of earlier exchanges included."""
    return sum(thread.name == THREAD for thread in threading.enumerate())


def exchange(grid: Grid, messages: Sequence[Message], *, timeout: float) -> Iterator[Message]:
    """Send `messages` now, and return an iterator of each one's first reply as it arrives.

    It ends when all have arrived or `timeout` seconds have passed, less than a second later at the latest, whatever nodes
    announce, send slowly or never. A client that has not answered by then counts as silent in this round; late and
    duplicate replies are dropped; an unreadable one becomes an error reply.
    Raises `RunStoppedError` if no message could be sent, or if the grid raises it.
    """
    # Flower announces all messages of a call before it uploads the first of their parts. So each has a call of its own where the
    # grid is elsewhere: a node that is told of a message finds it whole soon, instead of asking for what the others get first,
    # and works while the next is sent. A grid in this process shares all of them among its workers.
    ids = grid.push_messages(messages) if _is_here(grid) else [_pushed(grid, one) for one in messages]
    awaited = {sent: message for sent, message in zip(ids, messages, strict=False) if sent}
    if messages and not awaited:
        raise RunStoppedError("none of the round's tasks could be sent; look at the log of the SuperLink.")
    if len(awaited) < len(messages):
        log.warning("%d of %d tasks could not be sent", len(messages) - len(awaited), len(messages))
    return _replies(grid, awaited, time.monotonic() + timeout)


def _is_here(grid: Grid) -> bool:
    """Return whether a grid runs its clients in this process, which its attribute `is_exhausted` tells: no more replies can come."""
    return hasattr(grid, "is_exhausted")


def _pushed(grid: Grid, message: Message) -> str | None:
    """Send one message; return its id, None if it could not be sent.

    A SuperLink that ended and began again between the announcement and the last part no longer knows the upload (seen with
    Flower 1.41). It keeps a message once by its id, so that the same one is sent again and no client is asked twice.
    """
    for _ in range(_UPLOADS):
        with suppress(ObjectPushError):
            return next(iter(grid.push_messages([message])), None)
    return None


def _replies(grid: Grid, awaited: dict[str, Message], deadline: float) -> Iterator[Message]:
    with closing(Pulls(grid)) as pulls:
        yield from pulls.until(deadline, awaited)
    if awaited and not _is_here(grid):
        log.warning("%s: not answered in time", _called(one.metadata.dst_node_id for one in awaited.values()))


def _called(nodes: Iterable[int]) -> str:
    """Return which nodes are meant, by their ids, to which the log of an epoch's beginning gives names.

    >>> _called([7]), _called(range(30))
    ('nodes 7', 'nodes 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 20 more')
    """
    ids = sorted(set(nodes))
    more = f" and {len(ids) - _CALLED} more" if len(ids) > _CALLED else ""
    return f"nodes {', '.join(map(str, ids[:_CALLED]))}{more}"


def _nudge(grid: Grid, messages: Iterable[Message]) -> None:
    """Send the nodes of `messages` a query, so that they release the replies that they hold back."""
    nodes = {message.metadata.dst_node_id: message.metadata.group_id for message in messages}
    log.warning("%s: not answered yet, so that a query is sent there", _called(nodes))
    queries = [
        Message(RecordDict(), node, MessageType.QUERY, group_id=group) for node, group in nodes.items()
    ]
    _begin("", lambda: grid.push_messages(queries))  # whether they arrive is of no interest


class _Pull(NamedTuple):
    """A call about `question` in a thread of its own, which ends with the process at the latest, whatever it waits for."""

    question: str
    thread: threading.Thread
    outcome: Future[Any]


def _begin(question: str, call: Callable[[], object]) -> _Pull:
    outcome: Future[Any] = Future()
    thread = threading.Thread(target=_run, args=(call, outcome), name=THREAD, daemon=True)
    thread.start()
    return _Pull(question, thread, outcome)


def _run(call: Callable[[], object], outcome: Future[Any]) -> None:
    try:
        outcome.set_result(call())
    except BaseException as error:  # Flower tells that a run was stopped by one that is no `Exception`
        outcome.set_exception(error)
        del outcome  # in a cycle with the error's frames, their sockets would stay open


class Pulls:
    """The pulls of one exchange with a grid, to be closed at its end.

    A grid in this process has its clients' work done by a pull: it is called in this thread, and waited for.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid, self._is_here = grid, _is_here(grid)
        self._slow: dict[int, _Pull] = {} if self._is_here else _under_way.setdefault(grid, {})  # by node
        self._waited: dict[int, float] = {}  # by node: the seconds that its replies took

    def close(self) -> None:
        """Leave the pulls that are under way: what they bring is dropped."""
        for node, pull in self._slow.items():
            self._slow[node] = _Pull(_ENDED, pull.thread, Future())

    def until(self, deadline: float, awaited: dict[str, Message]) -> Iterator[Message]:
        """Yield each one's first reply, and take it from `awaited`, which are messages by what they were sent as."""
        pause, patience, heard = _SHORTEST_PAUSE, _PATIENCE, time.monotonic()
        is_last = False
        while awaited and not is_last:
            # The last pass begins after the deadline: a pull that blocked until then makes no other node silent.
            is_late, before = time.monotonic() >= deadline, len(awaited)
            for question in list(awaited):
                if time.monotonic() >= deadline + _GRACE:
                    return
                slow = _LAST_SLOW if is_late else max(_LAST_SLOW, min(_SLOW, deadline - time.monotonic()))
                for reply in self.pull(question, awaited[question], slow) if question in awaited else ():
                    if awaited.pop(reply.metadata.reply_to_message_id, None) is not None:
                        yield reply
            is_last = is_late and all(pull.question == _ENDED for pull in self._slow.values())
            now = time.monotonic()
            if len(awaited) < before:
                pause, heard = _SHORTEST_PAUSE, now
                continue
            # A grid in one process knows when no more can come.
            if getattr(self._grid, "is_exhausted", False):
                return
            if now - heard >= patience and not self._is_here:
                _nudge(self._grid, awaited.values())
                patience, heard = 2 * patience, now
            time.sleep(pause if is_late else min(pause, max(0.0, deadline - now)))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def pull(self, question: str, message: Message, patience: float) -> list[Message]:
        """Return the replies to `message`, sent as `question`, that have arrived, waited for at most `patience` seconds."""
        try:
            return self._replies(question, message.metadata.dst_node_id, patience)
        except (OSError, httpx.HTTPError) as error:  # the next poll retries until the deadline
            log.warning("no reply could be fetched: %s", error)
            return []
        except RunStoppedError:  # a grid in one process that has no worker left to answer: no client's fault
            raise
        except Exception as error:
            log.warning("a reply could not be read (%s); it counts as the zero vector", type(error).__name__)
            return [Message(Error(_UNREADABLE, "unreadable reply"), reply_to=message)]

    def _replies(self, question: str, node: int, patience: float) -> list[Message]:
        """Return the replies to `question` that have come from `node`. Raises what the grid raised.

        A pull that takes longer continues, and a later call returns what it brought; until then the node's other
        questions have no replies, and none of its later pulls is waited for.
        """
        if self._is_here:
            return list(self._grid.pull_messages([question]))
        begun, grid, pull = time.monotonic(), self._grid, self._slow.get(node)
        if pull is None or (pull.question == _ENDED and not pull.thread.is_alive()):
            # The call keeps nothing but the grid alive.
            pull = _begin(question, lambda: list(grid.pull_messages([question])))
            patience = min(patience, _ALLOWANCE - self._waited.get(node, 0.0))
        elif pull.question == question:
            patience = 0.0  # it had its time when it was begun
        else:
            return []
        wait([pull.outcome], max(0.0, patience))
        if not pull.outcome.done():
            self._slow[node], self._waited[node] = pull, _ALLOWANCE
            return []
        self._slow.pop(node, None)
        if pull.outcome.exception() or pull.outcome.result():  # that there is no reply is no delay
            self._waited[node] = self._waited.get(node, 0.0) + time.monotonic() - begun
        return list(pull.outcome.result())
