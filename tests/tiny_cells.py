"""A comparison that takes seconds: two chains of tiny digits cells, tuned and run. As a program, with two workers."""

import sys
from functools import partial
from pathlib import Path

from experiments.reproduce.results import Results
from experiments.reproduce.trials import Cell, play
from experiments.reproduce.tuning import Seeds, tuned_runs
from experiments.reproduce.work import carry_out

SEEDS = Seeds(tuning=(100, 101), final=(0, 1, 2), held_out=0.1)
SETTINGS = ("population.cohort_size=8", "population.rounds_per_epoch=2", "population.epochs=2")


def chain(mechanism, keep_probability=0.5, epsilons=(8.0, 2.0)):
    """Return the cells of a mechanism at several epsilons."""
    return [
        Cell(
            "digits",
            mechanism,
            keep_probability,
            epsilon,
            (
                *SETTINGS,
                f"mechanism={mechanism}",
                f"compression.keep_probability={keep_probability}",
                f"privacy.epsilon={epsilon}",
            ),
        )
        for epsilon in epsilons
    ]


CHAINS = (chain("optimal"), chain("independent"))
RUNS = sum(len(cells) for cells in CHAINS) * len(SEEDS.final)


PLAY = partial(play, data=None)


def work(path, workers=1, player=PLAY):
    """Carry out the chains with the results in the file `path`, and return it."""
    with Results.alone(path, mix_code=False) as results:
        chains = [tuned_runs(cells, 0.3, SEEDS) for cells in CHAINS]
        carry_out(chains, results, player, workers=workers, runs=RUNS)
    return path


if __name__ == "__main__":
    work(Path(sys.argv[1]), workers=2)
