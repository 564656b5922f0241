"""Chains of trials shared out to processes; what is in the file of results is taken from there."""

import multiprocessing
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import torch

from experiments.engines.processes import leave_to_the_command, spawn_context
from experiments.reproduce.results import Results
from experiments.reproduce.trials import Outcome, Trial
from experiments.reproduce.tuning import Chain

PAUSE = 10.0  # seconds between two lines of progress

Play = Callable[[Trial], Outcome]


@dataclass
class _Link:
    """A chain and the batch of trials that it waits for."""

    chain: Chain[None]
    batch: list[Trial] = field(default_factory=list)
    missing: int = 0


def carry_out(
    chains: Iterable[Chain[None]], results: Results, play: Play, *, workers: int, runs: int
) -> None:
    """Carry out all chains, the first ones first, with `workers` processes, or in this one if that is 1.

    Outcomes go to `results` as they come. `runs` says how many trials without tuning the chains have together, by
    which the time left is told. An exception in a trial ends the rest.
    """
    waiting, todo = deque(chains), deque[tuple[Trial, _Link]]()
    running: dict[Future[Outcome], tuple[Trial, _Link]] = {}
    progress = Progress(runs)
    pool = _pool(workers)
    try:
        while waiting or todo or running:
            while waiting and len(todo) + len(running) < workers:
                todo += _advance(_Link(waiting.popleft()), results, progress)
            while todo and len(running) < workers:
                trial, link = todo.popleft()
                running[pool.submit(play, trial)] = trial, link
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                trial, link = running.pop(future)
                results.add(trial, future.result())
                progress.note(trial, was_computed=True)
                link.missing -= 1
                if link.missing == 0:
                    todo += _advance(link, results, progress)
    finally:
        pool.shutdown(cancel_futures=True)


def _advance(link: _Link, results: Results, progress: "Progress") -> list[tuple[Trial, _Link]]:
    """Send the chain its outcomes until it asks for trials that nobody has made yet; return these, [] at its end."""
    try:
        while True:
            outcomes = [results.find(trial) for trial in link.batch]
            link.batch = link.chain.send([known for known in outcomes if known] if link.batch else None)  # type: ignore[arg-type]
            missing = [trial for trial in link.batch if results.find(trial) is None]
            for trial in link.batch:
                if trial not in missing:
                    progress.note(trial, was_computed=False)
            if missing:
                results.check_code()
                link.missing = len(missing)
                return [(trial, link) for trial in missing]
    except StopIteration:
        return []


class Progress:
    """Says on stderr now and then how many runs are done and how long the rest will take."""

    def __init__(self, runs: int) -> None:
        self._runs = runs
        self._done = self._computed = self._tuning = 0
        self._started = time.monotonic()
        self._last = self._started - PAUSE

    def note(self, trial: Trial, *, was_computed: bool) -> None:
        """Count a trial: those on held-out clients apart, as nobody knows beforehand how many there will be."""
        if trial.held_out:
            self._tuning += was_computed
        else:
            self._done += 1
            self._computed += was_computed
        now = time.monotonic()
        if now - self._last >= PAUSE or self._done == self._runs:
            self._last = now
            print(self.line(trial, now - self._started), file=sys.stderr, flush=True)

    def line(self, trial: Trial, seconds: float) -> str:
        """Return where the work stands, after `seconds` of it; the trials that tune are counted as part of the runs."""
        left = "unknown"
        if self._computed:
            left = f"{seconds / self._computed * (self._runs - self._done) / 60:.0f} min"
        cell = trial.cell
        return (
            f"{self._done}/{self._runs} runs | {self._tuning} trials for tuning | time left {left} | "
            f"{cell.task}, {cell.mechanism}, keep {cell.keep_probability:g}, epsilon {cell.epsilon:g}"
        )


class _Here(Executor):
    """An executor that makes each call at once, in this process."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Return a future that has its result."""
        future: Future[Any] = Future()
        future.set_result(function(*arguments, **named))
        return future


def _pool(workers: int) -> Executor:
    if workers == 1:
        return _Here()
    # A fork would inherit torch's threads.
    return ProcessPoolExecutor(workers, spawn_context(), initializer=_start_worker)


def _start_worker() -> None:
    leave_to_the_command()
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when the command was killed: its queue of calls would never say so."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
