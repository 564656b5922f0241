"""Sending a round's tasks and taking the replies one by one, so that memory does not grow with the cohort.

Replies are pulled one question at a time. Flower unpacks them while pulling, after it has told the SuperLink
that they arrived: a reply whose bytes cannot be unpacked would take every other one of its batch with it, and
one client would decide whether others are heard.
"""

import logging
import time
from collections.abc import Iterator, Sequence

import httpx
from flwr.app import Error, Message
from flwr.serverapp import Grid

from fedmf.errors import RunStoppedError

log = logging.getLogger(__name__)

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.01, 1.0  # seconds between two looks for replies when none has come
_UNREADABLE = 0  # Flower's code for an unknown error


def exchange(grid: Grid, messages: Sequence[Message], *, timeout: float) -> Iterator[Message]:
    """Send `messages` now, and return an iterator of each one's first reply as it arrives.

    It ends when all are in or `timeout` seconds have passed. Who has not answered by then stays silent for
    this round; what comes later, or twice, is dropped; what cannot be read is an error reply. Raises
    `RunStoppedError` if not one message could be sent.
    """
    ids = list(grid.push_messages(messages))
    awaited = {sent: message for sent, message in zip(ids, messages, strict=False) if sent}
    if messages and not awaited:
        raise RunStoppedError("none of the round's tasks could be sent; look at the log of the SuperLink.")
    if len(awaited) < len(messages):
        log.warning("%d of %d tasks could not be sent", len(messages) - len(awaited), len(messages))
    return _replies(grid, awaited, time.monotonic() + timeout)


def _replies(grid: Grid, awaited: dict[str, Message], deadline: float) -> Iterator[Message]:
    pause = _SHORTEST_PAUSE
    while awaited:
        before = len(awaited)
        for question in list(awaited):
            for reply in _pull(grid, question, awaited.get(question)):
                if awaited.pop(reply.metadata.reply_to_message_id, None) is not None:
                    yield reply
        has_arrived = len(awaited) < before
        is_exhausted = not has_arrived and getattr(grid, "is_exhausted", False)  # a grid in one process knows
        if is_exhausted or time.monotonic() >= deadline:
            return
        if not has_arrived:
            time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        pause = _SHORTEST_PAUSE if has_arrived else min(2 * pause, _LONGEST_PAUSE)


def _pull(grid: Grid, question: str, message: Message | None) -> list[Message]:
    """Return the replies that are there for one question; None as its message means that it is answered."""
    if message is None:
        return []
    try:
        return list(grid.pull_messages([question]))
    except (
        OSError,
        httpx.HTTPError,
    ) as error:  # the way is broken, not the reply: look again until the deadline
        log.warning("no reply could be fetched: %s", error)
        return []
    except Exception as error:
        log.warning("a reply could not be read (%s); it counts as the zero vector", type(error).__name__)
        return [Message(Error(_UNREADABLE, "unreadable reply"), reply_to=message)]
