"""Sending a round's tasks and taking the replies one by one, so that memory does not grow with the cohort."""

import time
from collections.abc import Iterator, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.01, 1.0  # seconds between two looks for replies when none has come


def exchange(grid: Grid, messages: Sequence[Message], *, timeout: float) -> Iterator[Message]:
    """Send `messages` now, and return an iterator of each one's first reply as it arrives.

    It ends when all are in or `timeout` seconds have passed. Who has not answered by then stays silent for
    this round; what comes later, or twice, is dropped.
    """
    awaited = set(grid.push_messages(messages))
    return _replies(grid, awaited, time.monotonic() + timeout)


def _replies(grid: Grid, awaited: set[str], deadline: float) -> Iterator[Message]:
    pause = _SHORTEST_PAUSE
    while awaited:
        arrived = [reply for reply in grid.pull_messages(sorted(awaited)) if _is_awaited(reply, awaited)]
        yield from arrived
        is_exhausted = not arrived and getattr(grid, "is_exhausted", False)  # a grid in one process knows
        if is_exhausted or time.monotonic() >= deadline:
            return
        if arrived:
            pause = _SHORTEST_PAUSE
        else:
            time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(2 * pause, _LONGEST_PAUSE)


def _is_awaited(reply: Message, awaited: set[str]) -> bool:
    """Say whether this is the first reply to one of the awaited messages, and stop awaiting it."""
    question = reply.metadata.reply_to_message_id
    if question not in awaited:
        return False
    awaited.remove(question)
    return True
