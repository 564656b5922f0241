"""Plays a message in a process of its own, where this one has lost its device (`client.resident`)."""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

from flwr.app import Context, Message

from experiments.players.failures import note_again, played_with_failures
from experiments.players.processes import process_context, start_process


def in_another_process(
    play: Callable[[Message, Context], Message], message: Message, context: Context
) -> Message:
    """Return `play(message, context)` from a new process, which ends with it. `play` is found by its import path.

    Raises what `play` raised, and `BrokenExecutor` where the process died. What was noted of clients that failed in that
    process is noted in this one. A message costs the start of a process, and the first one that of the fork server, which
    has never used the device: this is for the rare case only.
    """
    processes = process_context([getattr(play, "func", play).__module__])
    with ProcessPoolExecutor(1, processes, initializer=start_process) as executor:
        reply, failures = executor.submit(played_with_failures, play, message, context).result()
    note_again(failures)
    return reply
