"""Pulls of replies that no node can make longer than the server is willing to wait.

Flower 1.41 fetches a reply part by part and waits for parts that a node has announced and not sent: three minutes for the
next one, an hour and a half in all. So every pull is done in a thread of its own, and who takes longer than a moment is
left to it: the pulls from other nodes go on, and what has not come when `Pulls` is closed is dropped, whenever it comes.
From then on nobody waits for that node in this exchange, however often it answers late: its pulls are begun, and looked at
when they are over. A node whose replies are each quick and many has an allowance for all of them together.

A node has at most one pull at a time, in all exchanges with a grid together: its own other replies wait for the slow one,
and nobody else's. So there are no more threads, nor replies in memory, than nodes that are slow, and one. The price: a node
with a pull of an earlier exchange under way is silent until that is over. Flower takes a reply from any registered node that
knows the id of a message, so that this can be done to a node by another one.
"""

import threading
import time
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import Any, Self
from weakref import WeakKeyDictionary

from flwr.app import Message
from flwr.serverapp import Grid

THREAD = "fedmf pull"
_ALLOWANCE = 1.0  # seconds in an exchange that the others wait for all replies of a node together

# By grid and node: the thread of a pull that was under way when its exchange ended. Nobody looks at what it brings.
_left: WeakKeyDictionary[Grid, dict[int, threading.Thread]] = WeakKeyDictionary()

_busy: dict[int, None] = {}  # the threads of pulls that are under way, whoever waits for them


def pulls_under_way() -> int:
    """Return how many calls to a SuperLink for replies this process waits for now, those of earlier exchanges included."""
    return len(_busy)


def is_here(grid: Grid) -> bool:
    """Whether a grid plays its clients in this process, which it says by an attribute `is_exhausted`: that no more replies can come."""
    return hasattr(grid, "is_exhausted")


class Pulls:
    """The pulls of one exchange with a grid, to be closed at its end.

    A grid in this process (`is_here`) has its clients' work done by a pull: it is called in this thread, and waited for.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._is_here = is_here(grid)
        self._idle: list[_Worker] = []
        self._slow: dict[int, tuple[str, _Worker]] = {}  # by node: the question under way, and who pulls it
        self._waited: dict[int, float] = {}  # by node: the seconds that its replies took
        self._left: dict[int, threading.Thread] = {} if self._is_here else _left.setdefault(grid, {})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let all threads end: the idle ones now, the others once their pull, which nobody waits for, is over."""
        self._left.update({node: worker.thread for node, (_, worker) in self._slow.items()})
        for worker in (*self._idle, *(worker for _, worker in self._slow.values())):
            worker.dismiss()

    @property
    def are_under_way(self) -> bool:
        """Whether any node keeps a pull waiting."""
        return bool(self._slow)

    def pull(self, question: str, node: int, patience: float) -> list[Message]:
        """Return the replies to `question` that have come from `node`, waited for at most `patience` seconds.

        A pull that takes longer goes on, and a later call returns what it brought; until then the node's other
        questions have no replies, and none of its later pulls is waited for. Raises what the grid raised.
        """
        if self._is_here:
            return list(self._grid.pull_messages([question]))
        if node in self._left:
            if self._left[node].is_alive():
                return []
            del self._left[node]
        begun = time.monotonic()
        if node not in self._slow:
            worker = self._idle.pop() if self._idle else _Worker()
            worker.begin(lambda: list(self._grid.pull_messages([question])))
            patience = min(patience, _ALLOWANCE - self._waited.get(node, 0.0))
        elif self._slow[node][0] != question:
            return []
        else:
            _, worker = self._slow.pop(node)
            patience = 0  # it had its time when it was begun
        try:
            replies, error = worker.outcome(patience)
        except Empty:
            self._slow[node] = question, worker
            self._waited[node] = _ALLOWANCE
            return []
        self._idle.append(worker)
        if error is not None or replies:  # no node can delay the SuperLink's answer that there is none
            self._waited[node] = self._waited.get(node, 0.0) + time.monotonic() - begun
        if error is not None:
            raise error
        return list(replies)

    def push(self, messages: list[Message]) -> None:
        """Send messages whose fate is of no interest, without waiting for it where the grid is elsewhere."""
        if self._is_here:
            self._grid.push_messages(messages)
            return
        worker = _Worker()  # not used again: nobody looks at what comes of it
        worker.begin(lambda: list(self._grid.push_messages(messages)))
        worker.dismiss()


class _Worker:
    """A thread that makes one call at a time. It ends with the process at the latest, whatever it waits for."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], Iterable[Any]] | None] = SimpleQueue()
        self._outcomes: SimpleQueue[tuple[Iterable[Any], BaseException | None]] = SimpleQueue()
        self.thread = threading.Thread(target=self._work, name=THREAD, daemon=True)
        self.thread.start()

    def begin(self, call: Callable[[], Iterable[Any]]) -> None:
        self._calls.put(call)

    def outcome(self, patience: float) -> tuple[Iterable[Any], BaseException | None]:
        """Return what the call returned and what it raised. Raises `Empty` while it lasts, after `patience` seconds."""
        return self._outcomes.get(timeout=patience) if patience > 0 else self._outcomes.get_nowait()

    def dismiss(self) -> None:
        """Let the thread end after its call."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            _busy[threading.get_ident()] = None
            outcome = [_tried(call)]
            del _busy[threading.get_ident()]
            self._outcomes.put(outcome.pop())  # held nowhere else: a reply may be as large as the model


def _tried(call: Callable[[], Iterable[Any]]) -> tuple[Iterable[Any], BaseException | None]:
    try:
        return call(), None
    except BaseException as error:  # Flower tells that a run was stopped by one that is no `Exception`
        return [], error
