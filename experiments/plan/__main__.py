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

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, NoReturn

from experiments.cli import command, output
from experiments.pages.wording import number, text_of, words_of
from experiments.plan.planned import Planned, PlanSettings, from_figures, from_run
from experiments.settings.log import messages
from experiments.settings.output import Output
from experiments.settings.recorded import flattened
from fedmf.accounting.caveats import TIGHT
from fedmf.errors import SettingError
from fedmf.rounding import rounded_up

if TYPE_CHECKING:
    from experiments.settings.schema import Settings

_SHARED = {"mechanism", "workload", "output"}  # groups and keys that do not decide
KEEP_PROBABILITIES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Print the plan from figures, or from the settings of a run."""
    command.run_form(pick_form, "plan", __doc__, argv)


def plan(settings: PlanSettings) -> None:
    """Print the plan that `settings` describe."""
    show(from_figures(settings), settings.output)


def plan_run(settings: "Settings") -> None:
    """Print the plan of the run that `settings` describe."""
    show(from_run(settings), settings.output)


def show(planned: Planned, form: Output) -> None:
    """Print a plan to stdout and its warnings to stderr."""
    for warning in planned.document["warnings"]:
        messages.warning(warning)
    output.show(form, planned.document, lambda: print_text(planned))


def pick_form(overrides: Sequence[str]) -> command.Form:
    """Return how the plan is asked for: from figures, or from a run's own settings.

    Raises `SettingError` where a figure and a setting of a run are given.
    """
    keys = {text: text.lstrip("+~").partition("=")[0].partition(".")[0] for text in overrides}
    decides = {text: key for text, key in keys.items() if key not in _SHARED}
    figures = {item.name for item in fields(PlanSettings)}
    of_figures = [text for text, key in decides.items() if key in figures]
    form = command.Form(plan, "plan", PlanSettings)
    if len(of_figures) == len(decides):
        return form
    from experiments.settings.schema import Settings  # it needs the client's settings, which take a moment

    groups = {item.name for item in fields(Settings)} | {"experiment", "hydra"}
    of_a_run = [text for text, key in decides.items() if key in groups]
    if of_figures and of_a_run:
        raise SettingError(
            f"{of_figures[0]} is a figure of a plan and {of_a_run[0]} a setting of a run; give figures only, or settings "
            "of a run only, whose data set says how many clients there are and whose model how many parameters."
        )
    return command.Form(plan_run, "config", Settings) if of_a_run else form


def print_text(planned: Planned) -> None:
    """Print the plan: epsilon with all that it holds for, every figure, and the table of keep probabilities."""
    budget, document, console = planned.budget, planned.document, output.console()
    if planned.event.noise_multiplier == 0:
        console.print("NOT private: noise_multiplier is 0, epsilon is infinite.")
    else:
        how = f"{TIGHT}" if document["accountant"] == "tight" else f"{document['accountant']} accountant"
        console.print(
            f"epsilon = {rounded_up(document['epsilon'])} at delta = {rounded_up(budget.privacy.delta)} "
            f"({'exact' if document['epsilon_exact'] else how}), unit of privacy: {document['unit_of_privacy']}, adjacency "
            f"{document['adjacency']}; epochs (one participation each): {budget.epochs}. "
            f"Not covered: {'; '.join(document['not_covered'])}."
        )
    shown = [(key, value) for key, value in flattened(document) if not isinstance(value, list)]
    rows = [(words_of(key), text_of(key, value)) for key, value in shown if value is not None]
    output.print_table("Plan", {}, rows)
    if budget.linf_over_l2 is not None and planned.event.noise_multiplier > 0:
        print_comparison(planned)


def print_comparison(planned: Planned) -> None:
    """Print the table of keep probabilities: at the same epsilon if one was asked for, else at the same noise."""
    budget, chosen, rows = planned.budget, planned.event.keep_probability, []
    for gamma in sorted({*KEEP_PROBABILITIES, chosen}, reverse=True):
        event = budget.event(gamma, planned.event.effective_noise_multiplier * gamma)
        cells = [
            f"{gamma:g}",
            rounded_up(budget.spent(event).epsilon),
            number(event.noise_multiplier),
            number(event.effective_noise_multiplier),
            number(budget.mean_noise(event)),
            text_of("uplink_bytes_per_client", budget.uplink_bytes(gamma)),
        ]
        rows.append([f"[bold]{cell}[/bold]" for cell in cells] if gamma == chosen else cells)
    columns = ("keep probability", "epsilon", "noise multiplier", "of the mean", "mean noise std", "bytes per client")  # fmt: skip
    same = "noise of the mean" if budget.privacy.epsilon is None else "epsilon"
    output.print_table(
        f"What compression costs at the same {same}", dict.fromkeys(columns, output.NUMBER), rows
    )


if __name__ == "__main__":
    main()
