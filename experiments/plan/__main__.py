"""What a run would cost, before it runs: `python -m experiments.plan dataset=null privacy.epsilon=8 ...`.

From figures, the keys below: from exactly one of `privacy.epsilon` and `privacy.noise_multiplier` follows the other.
Nothing is trained and no data set is read: all noise is relative to the sensitivity of the mechanism, which
therefore does not change epsilon. What it changes is the error in the model, which is computed once the rounds of an
epoch are known, from `population.rounds_per_epoch` or from `clients` and `population.cohort_size`:

    python -m experiments.plan clients=3400 dimension=1000000 population.cohort_size=100 privacy.epsilon=2

From a run's own settings, those of simulate, where none of `clients`, `dimension`, `linf_over_l2`, `orders` and
`dataset=null` is given:

    python -m experiments.plan model=mlp privacy.epsilon=2

reads the run's data set and prints the plan that the run would follow, without training. The last parts of the keys
(`epsilon=2`) are figures too.

As text it also prints what other keep probabilities would cost; `output=json` prints one JSON document. What speaks
against a plan, such as more noise than signal, stands on stderr and in the document's `warnings`.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, NoReturn

from experiments.cli import command, output
from experiments.plan.budget import Planned, PlanSettings
from experiments.plan.document import as_document
from experiments.plan.figures import from_figures
from experiments.plan.text import print_text
from experiments.settings.output import Output
from fedmf.errors import SettingError

if TYPE_CHECKING:
    from experiments.settings.schema import Settings

_KEY = re.compile(r"[+~]*(?P<key>[\w.]+)")  # of an override
_UNDECIDED = {"mechanism", "workload", "output"}
_FIGURES = {"clients", "dimension", "linf_over_l2", "orders", *PlanSettings.old_names}
_KNOWN = {*_UNDECIDED, *_FIGURES, "mechanism.name", "privacy.geometry", *PlanSettings.old_names.values()}


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

    What both have does not decide beside a figure: `population.cohort_size` alone is a setting of a run. Raises
    `SettingError` where a figure and what only a run has are given.
    """
    given = [(found["key"], override) for override in overrides if (found := _KEY.match(override))]
    of_figures = [text for key, text in given if key in _FIGURES or text == PlanSettings.marked_by]
    if not of_figures and all(key in _UNDECIDED for key, _ in given):
        return command.Form(plan, "plan", PlanSettings)
    from experiments.settings.schema import Settings  # it needs the client's settings, which take a moment

    groups = {item.name for item in fields(Settings)} | {"experiment", "hydra"}
    of_a_run = [
        override
        for key, override in given
        if key.split(".")[0] in groups and key not in _KNOWN and override not in of_figures
    ]
    if of_figures and of_a_run:
        raise SettingError(
            f"{of_figures[0]} is a figure of a plan and {of_a_run[0]} a setting of a run; give figures only, or settings "
            "of a run only, whose data set says how many clients there are and whose model how many parameters."
        )
    if not of_figures and any(key.split(".")[0] in groups for key, _ in given):
        return command.Form(plan_run, "config", Settings)
    return command.Form(plan, "plan", PlanSettings)


if __name__ == "__main__":
    main()
