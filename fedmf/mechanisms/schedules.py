"""Learning-rate schedules: the rate of a round as a share of the first one.

The one definition for the server, which applies it, and for the workloads that are fitted to it. A schedule
counts all rounds of a run. Applied to released sums, it costs no privacy. What restarts with an epoch is the
noise (fresh draws, fresh masks, fresh mechanism state); model, momentum and schedule live on.

The cooldown is that of Denisov, McMahan, Rush, Smith, Thakurta (NeurIPS 2022), section 5: constant, then a
straight line towards a twentieth of the rate over the last quarter of the rounds. The step is a decay in one
piece at the same place: the last quarter of the rounds has 0.15 of the rate.
"""

import math
from collections.abc import Callable

from fedmf.checks import check_at_least, check_choice
from fedmf.setting import SCHEDULES

COOLDOWN_FROM = 0.75
LAST = 0.05  # where cosine and cooldown would arrive after the last round
STEP_FROM = 0.75
STEP = 0.15
_SHARES: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "decay": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 1.0 - (1 - LAST) * (1 - math.cos(math.pi * progress)) / 2,
    "cooldown": lambda progress: 1.0 - (1 - LAST) * max(0.0, progress - COOLDOWN_FROM) / (1 - COOLDOWN_FROM),
    "step": lambda progress: 1.0 if progress < STEP_FROM else STEP,
}


def share(schedule: str, progress: float) -> float:
    """Return the rate of a round over the first one, in (0, 1]; `progress` is rounds done over all rounds.

    "constant" is 1; "decay" falls in a straight line that would reach 0 after the last round; "cosine" falls
    along half a cosine that would reach 0.05 after the last round; "cooldown" is 1 for three quarters of the
    run, then falls in a straight line that would reach 0.05 after the last round; "step" is 1 for three quarters
    of the run and 0.15 from then on.

    >>> [share("cooldown", done / 8) for done in range(8)]
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.525]
    >>> [share("decay", done / 4) for done in range(4)]
    [1.0, 0.75, 0.5, 0.25]
    >>> [share("step", done / 4) for done in range(4)]
    [1.0, 1.0, 1.0, 0.15]
    """
    assert 0 <= progress < 1
    return _SHARES[schedule](progress)


def rates(schedule: str, rounds: int) -> tuple[float, ...]:
    """Return the share of each round of a run of `rounds` rounds: learning rates for a workload.

    Raises `SettingError` for an unknown schedule and for no rounds.

    >>> rates("decay", 4)
    (1.0, 0.75, 0.5, 0.25)
    """
    check_choice("schedule", schedule, SCHEDULES)
    check_at_least("rounds", rounds, 1)
    return tuple(share(schedule, done / rounds) for done in range(rounds))
