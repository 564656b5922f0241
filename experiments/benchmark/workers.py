"""What worker processes gain: `python -m experiments.benchmark.workers [REPEATS [WORKERS ...]]`, by default 5 rounds of 1, 2 and 4.

Wall seconds of a whole round of 100 clients at about a million parameters, the rounds of one process and of several in
turns; the speed-up is the median of their ratios. It says something on an idle machine only, with a core for each worker.
"""

import sys
import time
from contextlib import ExitStack
from functools import partial
from statistics import median

from flwr.clientapp import ClientApp

from client.app import make_client_app
from client.parameters import flat_parameters
from client.training import Trainer
from experiments.benchmark.simulation import TRAINING, Federation, build_plan, repeated_round
from experiments.players.local_grid import InProcessPlayer, Player
from experiments.players.parts import clients_a_message
from experiments.players.worker_pool import WorkerPool
from fedmf.updates.client_plan import ClientPlan
from server.exchange import tasks_per_message

FEDERATION = Federation("cnn", 62)


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
        player: Player = InProcessPlayer(client_app(given))
    else:
        player = stack.enter_context(WorkerPool(client_app, given, workers))
        together = clients_a_message(federation.cohort_size, workers, together)
    return repeated_round(plan, initial, player, together)


def measure(
    workers: list[int], repeats: int, federation: Federation = FEDERATION
) -> dict[int, tuple[float, float]]:
    """Return {workers: (median wall seconds of a round, median speed-up over one process)}."""
    with ExitStack() as stack:
        rounds = {count: round_with(count, federation, stack) for count in [1, *workers]}
        walls: dict[int, list[float]] = {count: [] for count in rounds}
        for _ in range(repeats):
            for count, play in rounds.items():
                began = time.perf_counter()
                play()
                walls[count].append(time.perf_counter() - began)
    return {
        count: (median(taken), median(one / own for one, own in zip(walls[1], taken, strict=True)))
        for count, taken in walls.items()
    }


def main() -> None:
    """Measure and print."""
    repeats, *workers = [int(text) for text in sys.argv[1:]] or [5]
    for count, (seconds, gain) in measure(workers or [2, 4], repeats).items():
        print(f"{count} workers: {seconds:.3f} s a round, {gain:.2f} times as fast as one process")


if __name__ == "__main__":
    main()
