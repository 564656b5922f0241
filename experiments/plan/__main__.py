"""What a run would cost, before it runs: `python -m experiments.plan epsilon=8 keep_probability=0.1 ...`.

From figures, the keys below: from exactly one of `epsilon` and `noise_multiplier` follows the other. Nothing is trained
and no data set is read: all noise is relative to the sensitivity of the mechanism, which therefore does not change
epsilon. What it changes is the error in the model, which is computed once the rounds of an epoch are known, from
`rounds_per_epoch` or from `clients` and `cohort_size`.

From a run's own settings, those of simulate, as soon as one of them is given:

    python -m experiments.plan model=mlp privacy.epsilon=2

reads the run's data set and prints the plan that the run would follow, without training. The two kinds of keys do not
mix.

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

_KEY = re.compile(r"[+~]*(\w+)")  # of an override: the first part of its key


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Print the plan from figures, or from the settings of a run."""
    command.run_form(pick_form, __doc__, argv)


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
    """Return how the plan is asked for: by the keys of conf/plan.yaml, or by those of a run.

    Keys that both have do not decide. Raises `SettingError` where both kinds are given.
    """
    own = {item.name for item in fields(PlanSettings)}
    given = [(found[1], override) for override in overrides if (found := _KEY.match(override))]
    if all(key in own for key, _ in given):
        return command.Form(plan, "plan", PlanSettings)
    from experiments.settings.schema import Settings  # it needs the client's settings, which take a moment

    of_a_run = {item.name for item in fields(Settings)} | {"experiment", "hydra"}
    figures = [override for key, override in given if key in own - of_a_run]
    settings = [override for key, override in given if key in of_a_run - own]
    if figures and settings:
        raise SettingError(
            f"{figures[0]} is a figure of a plan and {settings[0]} a setting of a run; give keys of one kind only, such as "
            "population.cohort_size and privacy.epsilon beside those of a run."
        )
    if settings:
        return command.Form(plan_run, "config", Settings)
    return command.Form(plan, "plan", PlanSettings)


if __name__ == "__main__":
    main()
