"""Runs that restart every epoch: the root loss of each epoch's optimum, all later rounds of the run counted.

Computed apart from this code, from dense eigendecompositions of W_e = A[:, e]^T A[:, e] with A the workload of the
whole run, to a relative gap of 5e-11 between primal and dual; the last two numbers of a run cost designs that do not
know it: the optimum of one epoch of prefix sums, and independent noise.
"""

from dataclasses import dataclass

from fedmf.mechanisms import Workload, of_run
from fedmf.mechanisms.schedules import rates


@dataclass(frozen=True)
class WholeRun:
    """A run and its known root losses: by epoch, of the run, of the prefix-sum design and of independent noise."""

    rounds: int
    epochs: int
    momentum: float
    schedule: str
    epoch_root_loss: tuple[float, ...]
    root_loss: float
    prefix_sum_root_loss: float
    independent_root_loss: float

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """The workload of each epoch."""
        return of_run(
            self.rounds, self.epochs, self.momentum, rates(self.schedule, self.rounds * self.epochs)
        )

    def __str__(self) -> str:
        return f"{self.rounds}x{self.epochs}-{self.momentum}-{self.schedule}"


WHOLE_RUNS = (
    WholeRun(
        22,
        8,
        0.0,
        "constant",
        (
            18.57403949,
            17.67476479,
            16.70077838,
            15.62958004,
            14.42438506,
            13.01678677,
            11.24616545,
            8.35714459,
        ),
        41.88567475099597,
        54.06008099482908,
        124.80384609458156,
    ),
    WholeRun(
        22,
        8,
        0.9,
        "constant",
        (
            144.81871402,
            135.4502443,
            125.22851503,
            113.86671054,
            100.87152095,
            85.27459443,
            64.90183137,
            35.45157563,
        ),
        301.46794104907957,
        478.0302262407455,
        1153.349091680632,
    ),
    WholeRun(
        32,
        16,
        0.0,
        "constant",
        (
            29.93302989,
            29.19793368,
            28.4366534,
            27.64617218,
            26.82284469,
            25.96219691,
            25.05863544,
            24.10501078,
            23.09193344,
            22.00664641,
            20.83104145,
            19.53785628,
            18.08246605,
            16.38170904,
            14.23942559,
            10.70325665,
        ),
        93.11172873765089,
        135.7790578864995,
        362.392052892996,
    ),
    WholeRun(
        128,
        4,
        0.9,
        "constant",
        (309.2830988, 274.64617448, 230.54270183, 155.77409288),
        498.4998111745463,
        780.2291280181979,
        3527.585042587489,
    ),
    WholeRun(
        16,
        3,
        0.5,
        "cooldown",
        (18.71304465, 15.63626171, 9.37005168),
        26.124099769483273,
        31.406973816230824,
        65.33090940619813,
    ),
    WholeRun(
        100,
        5,
        0.0,
        "decay",
        (34.9234372, 25.50413019, 16.91010151, 9.31640235, 3.15008658),
        47.46342858874558,
        61.64961448702768,
        250.5,
    ),
    WholeRun(
        7,
        2,
        0.0,
        "constant",
        (5.37127218, 3.85758559),
        6.612982036244384,
        6.893512313054989,
        10.246950765959598,
    ),
)
