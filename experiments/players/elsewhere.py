"""Plays a message in a process of its own, where this one has lost its device (`client.resident`)."""

import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor

from flwr.app import Context, Message

from experiments.players.failures import Failure, note_again, played_with_failures
from experiments.players.processes import PAUSE, TRIES, process_context, start_process, stopped, why_not

Play = Callable[[Message, Context], Message]

_play: Play | None = None  # of the process that plays


def in_another_process(
    make: Callable[[Message, Context], Play], message: Message, context: Context
) -> Message:
    """Return the reply to `message` of what `make(message, context)` returns in a new process, which ends with it.

    `make` is found by its import path. It reads no client's data: where it raises, or no process begins, in each of
    three tries, `RunStoppedError` is raised and no client has been played. After that this raises what the reply's
    making raised, and `BrokenExecutor` where the process died at it.

    What was noted of clients that failed in that process is noted in this one. A message costs the start of a process, and
    the first one that of the fork server, which has never used the device: this is for the rare case only.
    """
    processes = process_context([getattr(make, "func", make).__module__])
    for number in range(TRIES):
        if number:
            time.sleep(PAUSE)
        with ProcessPoolExecutor(1, processes, initializer=start_process) as executor:
            said = _why_not_begun(executor, make, message, context)
            if said is None:
                reply, failures = executor.submit(_played, message, context).result()
                note_again(failures)
                return reply
    raise stopped(
        f"no process can begin that plays the clients after a lost device ({said}); {TRIES} tries were made"
    )


def _why_not_begun(
    executor: ProcessPoolExecutor,
    make: Callable[[Message, Context], Play],
    message: Message,
    context: Context,
) -> str | None:
    """Let the process of `executor` begin; return why it cannot, None where it has."""
    try:
        return executor.submit(_begun, make, message, context).result()
    except (BrokenExecutor, OSError, EOFError) as error:
        return why_not(error)


def _begun(make: Callable[[Message, Context], Play], message: Message, context: Context) -> str | None:
    """Make what plays in this process; return why that is not possible, since not every error can travel."""
    global _play
    try:
        _play = make(message, context)
    except (Exception, SystemExit) as error:
        return why_not(error)
    return None


def _played(message: Message, context: Context) -> tuple[Message, list[Failure]]:
    assert _play is not None
    return played_with_failures(_play, message, context)
