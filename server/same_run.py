"""What may not change between the processes of one run: refused by name, with both values, where it has.

The first is what the user asked for. The others are what code made of it: another version of fedmf or of its libraries
may make something else of the same settings, and what was said of the rounds before would be false.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmf.accounting import Ledger
from fedmf.accounting.epoch import ROUNDING
from fedmf.errors import RunDirectoryError
from fedmf.plan import Plan
from server.optimizer import Optimizer, form
from server.state import ServerState


def refuse_other_configuration(run: Path, began: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise `RunDirectoryError` where a setting is not the one that the run in `run` began with."""
    for key in sorted({*began, *now}):
        if began.get(key) != now.get(key):
            raise RunDirectoryError(
                f"{key} is {now.get(key)!r}, but the run in {run} has {began.get(key)!r}; resume it with its own settings."
            )


def refuse_other_calculation(
    run: Path, began: Mapping[str, float | None], now: Mapping[str, float | None]
) -> None:
    """Raise `RunDirectoryError` where this version calculates what would make the run's statement false."""
    for key in sorted({*began, *now}):
        old, new = began.get(key), now.get(key)
        if old != new and (old is None or new is None or not math.isclose(old, new, rel_tol=ROUNDING)):
            raise RunDirectoryError(
                f"{key} is {new!r} as this version calculates it, but the run in {run} began with {old!r}; resume it "
                "with the version of fedmf and its libraries that began it."
            )


def other_code(run: Path, before: Mapping[str, str], now: Mapping[str, str]) -> str | None:
    """Return in words how the code that goes on differs from that which played the run so far; None where it does not.

    What the run does not say, because its code was older than that record, counts as other code.
    """
    differing = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
    if not differing:
        return None
    old, new = ([f"{key} {code.get(key, 'unknown')}" for key in differing] for code in (before, now))
    return f"the run in {run} was played so far with {' and '.join(old)}, and this is {' and '.join(new)}"


def refuse_other_events(run: Path, plan: Plan, ledger: Ledger) -> None:
    """Raise `RunDirectoryError` where an epoch began with another event than the plan would record for it."""
    for number, began in enumerate(ledger.entries, 1):
        if not began.agrees_with(plan.epoch_event):
            raise RunDirectoryError(
                f"epoch {number} of the run in {run} is in its ledger as {began}, but this version plans "
                f"{plan.epoch_event}; resume it with the version of fedmf and its libraries that began it."
            )


def refuse_other_slots(run: Path, optimizer: Optimizer, state: ServerState) -> None:
    """Raise `RunDirectoryError` where the optimizer's state is not one that this optimizer makes."""
    held, wanted = form(state.slots), form(optimizer.first(state.model))
    if state.round and held != wanted:
        raise RunDirectoryError(
            f"the optimizer of the run in {run} keeps {held}, but this one keeps {wanted}; resume it with the code that "
            "began it."
        )
