"""What a run would cost, before it runs: `python -m experiments.plan epsilon=8 ...`.

From figures, the keys below: from exactly one of `epsilon` and `noise_multiplier` follows the other.
Nothing is trained and no data set is read: all noise is relative to the sensitivity of the mechanism, which
therefore does not change epsilon. What it changes is the error in the model, which is computed once the rounds of an
epoch are known, from `rounds_per_epoch` or from `clients` and `cohort_size`:

    python -m experiments.plan clients=3400 dimension=1000000 cohort_size=100 epsilon=2

From a run's own settings, those of simulate, all of which are in a group (`privacy.epsilon`) or choose one (`model=mlp`):

    python -m experiments.plan model=mlp privacy.epsilon=2

reads the run's data set and prints the plan that the run would follow, without training.

As text it also prints what other keep probabilities would cost; `output=json` prints one JSON document. Warnings, such
as more noise than signal, are printed on stderr and are in the document's `warnings`.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, NoReturn

from experiments.cli import command, output
from experiments.plan.budget import Planned, PlanSettings
from experiments.plan.figures import from_figures
from experiments.plan.text import as_document, print_text
from experiments.settings.output import Output
from fedmf.errors import SettingError

if TYPE_CHECKING:
    from experiments.settings.schema import Settings

_KEY = re.compile(r"[+~]*(?P<key>[\w.]+)")  # of an override
_SHARED = {"mechanism", "workload", "output"}  # groups and keys that do not decide


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Print the plan from figures, or from the settings of a run."""
    command.run_form(pick_form, "plan", __doc__, argv)


def plan(settings: PlanSettings) -> None:
    """Print the plan that `settings` describe."""
    show(from_figures(settings), settings.output)


def plan_run(settings: "Settings") -> None:
    """Print the plan of the run that `settings` describe."""
    from experiments.plan.run_settings import from_run  # it needs torch, data and models, which take seconds

    show(from_run(settings), settings.output)


def show(planned: Planned, form: Output) -> None:
    """Print a plan to stdout and what speaks against it to stderr."""
    for warning in planned.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    document = as_document(planned)
    if form is Output.json:
        output.print_json(document)
    else:
        print_text(planned, document)


def pick_form(overrides: Sequence[str]) -> command.Form:
    """Return how the plan is asked for: from figures, or from a run's own settings.

    Raises `SettingError` where a figure and a setting of a run are given.
    """
    given = {override: found["key"] for override in overrides if (found := _KEY.match(override))}
    decides = {override: key for override, key in given.items() if key.split(".")[0] not in _SHARED}
    figures = {item.name for item in fields(PlanSettings)}
    of_figures = [override for override, key in decides.items() if key in figures]
    if len(of_figures) == len(decides):
        return command.Form(plan, "plan", PlanSettings)
    from experiments.settings.schema import Settings  # it needs the client's settings, which take a moment

    groups = {item.name for item in fields(Settings)} | {"experiment", "hydra"}
    of_a_run = [override for override, key in decides.items() if key.split(".")[0] in groups]
    if of_figures and of_a_run:
        raise SettingError(
            f"{of_figures[0]} is a figure of a plan and {of_a_run[0]} a setting of a run; give figures only, or settings "
            "of a run only, whose data set says how many clients there are and whose model how many parameters."
        )
    if of_a_run:
        return command.Form(plan_run, "config", Settings)
    return command.Form(plan, "plan", PlanSettings)


if __name__ == "__main__":
    main()
