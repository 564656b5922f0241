"""Work that is shared out to processes, with a line now and then that says how much time is left."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

from experiments.engines.processes import spawn_context

log = logging.getLogger(__name__)

PAUSE = 5.0  # seconds between two lines


@dataclass(frozen=True)
class Task:
    """A call to make: `function` is importable; `weight` says how long it takes, in any common unit."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    weight: float


def outcomes(tasks: Sequence[Task], workers: int) -> list[Any]:
    """Return what the calls return, in order; made by `workers` processes, or in this one if that is 1."""
    found: list[Any] = [None] * len(tasks)
    started, last, done = time.monotonic(), 0.0, 0.0
    total = sum(task.weight for task in tasks)
    for index, outcome in _as_they_come(tasks, workers):
        found[index] = outcome
        done += tasks[index].weight
        now = time.monotonic()
        if now - last > PAUSE:
            last = now
            left = (now - started) * (total - done) / done
            log.info("%3.0f %% done | time left %.0f s", 100 * done / total, left)
    return found


def _as_they_come(tasks: Sequence[Task], workers: int) -> Iterator[tuple[int, Any]]:
    """Yield (index, outcome) as calls return; a call that raises ends the rest."""
    if workers == 1:
        yield from ((index, task.function(*task.arguments)) for index, task in enumerate(tasks))
        return
    pool = ProcessPoolExecutor(workers, mp_context=spawn_context())
    try:
        futures = {pool.submit(task.function, *task.arguments): index for index, task in enumerate(tasks)}
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        pool.shutdown(cancel_futures=True)
