"""What worker processes gain: `python -m experiments.benchmark.workers [REPEATS [WORKERS ...]]`, by default 5 rounds of 1, 2 and 4.

Wall seconds of a whole round of 100 clients at about a million parameters, the rounds of one process and of several in
turns; the speed-up is the median of their ratios. Beside it stands what this machine gives at most: as many processes that have nothing to
do with each other, each with rounds of its own at the same time, share its memory and caches, and are slower than one alone. It
says something on an idle machine only, with a core for each worker.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from threading import BrokenBarrierError
from typing import Any

from flwr.clientapp import ClientApp

from client.app import make_client_app
from client.parameters import flat_parameters
from client.training import Trainer
from experiments.benchmark.simulation import TRAINING, Federation, build_plan, repeated_round
from experiments.engines.grid import InProcessWorker, Worker
from experiments.engines.pool import Pool, clients_a_message
from experiments.engines.processes import LocalProcess, process_context, start_process
from fedmf.updates.client_plan import ClientPlan
from server.exchange import tasks_per_message

FEDERATION = Federation("cnn", 62)
_START = 120.0  # seconds for a process to import what it needs and play its first round


@dataclass
class Walls:
    """Wall seconds of rounds, turn by turn: of one process, of `workers`, and of as many that work apart (the slowest)."""

    one: list[float] = field(default_factory=list)
    several: list[float] = field(default_factory=list)
    apart: list[float] = field(default_factory=list)

    def gain(self) -> float:
        """Return how many times as fast the workers are as one process."""
        return median(one / several for one, several in zip(self.one, self.several, strict=True))

    def most(self, workers: int) -> float:
        """Return how many times as fast processes are that share nothing but the machine.

        >>> Walls(one=[1.0], several=[0.6], apart=[1.25]).most(2)
        1.6
        """
        return median(workers * one / apart for one, apart in zip(self.one, self.apart, strict=True))


def client_app(given: tuple[Federation, ClientPlan]) -> ClientApp:
    """Return the app of the federation's clients, in whichever process."""
    federation, plan = given
    cohort = federation.cohort()
    return make_client_app(
        lambda name, context: cohort[int(name) % len(cohort)],
        lambda: Trainer(federation.build(), TRAINING),
        plan,
    )


def round_with(workers: int, federation: Federation, stack: ExitStack) -> "partial[None]":
    """Return what plays one round with so many processes, which end with `stack`."""
    initial = flat_parameters(federation.build())
    plan = build_plan(len(initial), federation.cohort_size, federation.compression)
    given = federation, plan.client_plan
    together = tasks_per_message(plan)
    if workers == 1:
        player: Worker = InProcessWorker(client_app(given))
    else:
        player = stack.enter_context(Pool([LocalProcess(partial(client_app, given)) for _ in range(workers)]))
        together = clients_a_message(federation.cohort_size, workers, together)
    return repeated_round(plan, initial, player, together)


def measure(workers: list[int], repeats: int, federation: Federation = FEDERATION) -> dict[int, Walls]:
    """Return the walls of rounds by number of workers, each at least 2; what is compiled is used from the first on."""
    with ExitStack() as stack:
        alone = round_with(1, federation, stack)
        together = {count: round_with(count, federation, stack) for count in workers}
        apart = {count: stack.enter_context(_apart(count, federation)) for count in workers}
        found = {count: Walls() for count in workers}
        for play in (alone, *together.values()):
            play()
        for _ in range(repeats):
            one = _timed(alone)
            for count, walls in found.items():
                walls.one.append(one)
                walls.several.append(_timed(together[count]))
                walls.apart.append(apart[count]())
    return found


def _timed(play: Callable[[], None]) -> float:
    began = time.perf_counter()
    play()
    return time.perf_counter() - began


@contextmanager
def _apart(count: int, federation: Federation) -> Iterator[Callable[[], float]]:
    """Lend what lets `count` processes play a round each at the same time, and returns the slowest one's wall seconds.

    Raises `RuntimeError` where a process does not begin or ends.
    """
    context = process_context()
    turn, walls = context.Barrier(count + 1, timeout=_START), context.SimpleQueue()
    processes = [
        context.Process(target=_play_apart, args=(federation, turn, walls), daemon=True)  # type: ignore[attr-defined]
        for _ in range(count)
    ]
    for process in processes:
        process.start()

    def play() -> float:
        try:
            turn.wait()  # all begin
            turn.wait()  # all have ended
        except BrokenBarrierError:
            raise RuntimeError(f"one of {count} processes that play rounds apart did not go on.") from None
        taken: list[float] = [walls.get() for _ in processes]
        return max(taken)

    try:
        yield play
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _play_apart(federation: Federation, turn: Any, walls: Any) -> None:
    """Play rounds at the turns of `turn`, in a process of its own, until it is ended."""
    start_process()
    with ExitStack() as stack:
        play = round_with(1, federation, stack)
        play()
        while True:
            turn.wait()
            walls.put(_timed(play))
            turn.wait()


def main() -> None:
    """Measure and print. Exit code 2 for arguments that are no numbers of rounds and workers."""
    given = sys.argv[1:]
    numbers = [int(text) for text in given if text.isdecimal()]
    if len(numbers) < len(given) or 0 in numbers or 1 in numbers[1:]:
        sys.stderr.write(
            f"error: the arguments are {' '.join(given)!r}; they must be a number of rounds, 1 or more, and numbers of workers, 2 or more.\n"
        )
        sys.exit(2)
    repeats, *workers = numbers or [5]
    for count, walls in measure(workers or [2, 4], repeats).items():
        print(
            f"{count} workers: {median(walls.several):.3f} s a round, {walls.gain():.2f} times as fast as one process; {count} processes "
            f"apart do {walls.most(count):.2f} times the work of one"
        )


if __name__ == "__main__":
    main()
