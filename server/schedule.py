"""Learning-rate schedules of the server: what a round's rate is, as a share of optimizer.learning_rate.

A schedule counts all rounds of a run. What restarts with an epoch is the noise (fresh draws, fresh masks,
fresh mechanism state); model, momentum and schedule live on. Schedule and momentum are applied to released
sums, so they cost no privacy. `workload=momentum` fits the mechanism to the momentum, at a constant rate.

The cooldown is that of Denisov, McMahan, Rush, Smith, Thakurta (NeurIPS 2022), section 5: constant, then a
straight line towards a twentieth of the rate over the last quarter of the rounds.
"""

from fedmf.checks import check_choice
from fedmf.errors import SettingError

SCHEDULES = ("constant", "decay", "cooldown")
COOLDOWN_FROM = 0.75
COOLDOWN_TO = 0.05


def share(schedule: str, progress: float) -> float:
    """Return the rate of a round over the first one, in (0, 1]; `progress` is rounds done over all rounds.

    "constant" is 1; "decay" falls in a straight line that would reach 0 after the last round; "cooldown" is 1
    for three quarters of the run, then falls in a straight line that would reach 0.05 after the last round.

    >>> [share("cooldown", done / 8) for done in range(8)]
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.525]
    >>> [share("decay", done / 4) for done in range(4)]
    [1.0, 0.75, 0.5, 0.25]
    """
    check_choice("optimizer.schedule", schedule, SCHEDULES)
    if not 0 <= progress < 1:
        raise SettingError(f"progress is {progress}; it must lie in [0, 1).")
    if schedule == "constant":
        return 1.0
    if schedule == "decay":
        return 1.0 - progress
    cooled = max(0.0, progress - COOLDOWN_FROM) / (1 - COOLDOWN_FROM)
    return 1.0 - (1 - COOLDOWN_TO) * cooled
