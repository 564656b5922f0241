"""Learning-rate schedules, relative to the first rate: one positive number a round."""

import numpy as np

from fedmf.checks import check_at_least, check_choice
from fedmf.errors import SettingError

SCHEDULES = ("constant", "linear", "cosine", "cooldown")
COOLDOWN = 0.25  # the last part of the rounds in which `cooldown` falls


def schedule(name: str, rounds: int, last: float = 0.05) -> tuple[float, ...]:
    """Return the rates of a schedule that ends at `last` times its first rate.

    linear and cosine fall from the first round on; cooldown is constant and falls linearly over the last
    quarter of the rounds (Denisov et al. 2022, section 5). Raises `SettingError` for an unknown name or
    `last` outside (0, 1].

    >>> schedule("linear", 3, last=0.5)
    (1.0, 0.75, 0.5)
    """
    check_choice("schedule", name, SCHEDULES)
    check_at_least("rounds", rounds, 1)
    if not 0 < last <= 1:
        raise SettingError(f"last is {last}; the last rate must lie in (0, 1] times the first.")
    done = np.linspace(0, 1, rounds)
    fall = {
        "constant": 0 * done,
        "linear": done,
        "cosine": (1 - np.cos(np.pi * done)) / 2,
        "cooldown": np.maximum(0, 1 - (1 - done) / COOLDOWN),
    }[name]
    return tuple((1 - (1 - last) * fall).tolist())
