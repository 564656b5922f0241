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
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NoReturn

from experiments.cli import command, output
from experiments.plan.planned import Planned, PlanSettings, as_document, from_figures, from_run
from experiments.settings.log import messages
from experiments.settings.output import Output
from fedmf.accounting import noise_saved
from fedmf.accounting.caveats import TIGHT
from fedmf.errors import SettingError
from fedmf.rounding import rounded_up

if TYPE_CHECKING:
    from experiments.settings.schema import Settings

_KEY = re.compile(r"[+~]*(?P<key>[\w.]+)")  # of an override
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
    for warning in planned.warnings:
        messages.warning(warning)
    document = as_document(planned)
    output.show(form, document, lambda: print_text(planned, document))


def pick_form(overrides: Sequence[str]) -> command.Form:
    """Return how the plan is asked for: from figures, or from a run's own settings.

    Raises `SettingError` where a figure and a setting of a run are given.
    """
    given = {
        override: found["key"].split(".")[0] for override in overrides if (found := _KEY.match(override))
    }
    decides = {override: key for override, key in given.items() if key not in _SHARED}
    figures = {item.name for item in fields(PlanSettings)}
    of_figures = [override for override, key in decides.items() if key in figures]
    form = command.Form(plan, "plan", PlanSettings)
    if len(of_figures) == len(decides):
        return form
    from experiments.settings.schema import Settings  # it needs the client's settings, which take a moment

    groups = {item.name for item in fields(Settings)} | {"experiment", "hydra"}
    of_a_run = [override for override, key in decides.items() if key in groups]
    if of_figures and of_a_run:
        raise SettingError(
            f"{of_figures[0]} is a figure of a plan and {of_a_run[0]} a setting of a run; give figures only, or settings "
            "of a run only, whose data set says how many clients there are and whose model how many parameters."
        )
    return command.Form(plan_run, "config", Settings) if of_a_run else form


def print_text(planned: Planned, document: dict[str, Any]) -> None:
    """Print the plan in words and the table of keep probabilities."""
    console = output.console()
    if planned.event.noise_multiplier == 0:
        console.print(
            "NOT private: noise_multiplier is 0, epsilon is infinite at every delta under every adjacency."
        )
    else:
        console.print("\n".join(_headlines(planned, document)))
    for order, value in (document["rdp"] or {}).items():
        console.print(f"One epoch at Renyi order {order}: {value:.6g}")
    if not planned.feasible:
        console.print("NOT feasible: the cohorts of an epoch would not be disjoint.")
    if not planned.comparable:
        console.print("Give dimension and cohort_size to compare keep probabilities.")
    elif planned.event.noise_multiplier > 0:
        _print_comparison(planned)


def _headlines(planned: Planned, document: dict[str, Any]) -> Iterator[str]:
    """Yield the lines that say in plain words what a plan with noise is."""
    budget, event = planned.budget, planned.event
    how = f"{budget.accountant} accountant"
    if document["epsilon_exact"] is not None:
        how = f"exact; by Renyi divergence {rounded_up(document['epsilon_rdp'])}"
    elif budget.accountant == "tight":
        how += f", {TIGHT}; by Renyi divergence {rounded_up(document['epsilon_rdp'])}"
    yield (
        f"epsilon = {rounded_up(document['epsilon'])} at delta = {rounded_up(budget.delta)} ({how}), "
        f"unit of privacy: {planned.unit}, adjacency {budget.adjacency}; "
        f"epochs (one participation each): {budget.epochs}."
    )
    yield (
        f"Noise multiplier {event.noise_multiplier:.4g} of the sum, "
        f"{event.effective_noise_multiplier:.4g} of the mean; "
        f"keep probability {event.keep_probability:g}, Delta_inf/Delta_2 {event.linf_over_l2:.4g}."
    )
    if budget.geometry == "linf":
        yield (
            f"Epsilon is counted from the L-infinity bound alone: all {budget.padded} coordinates may be at it. Delta_2 stands "
            f"above for their L2 norm, {budget.counted_over_l2:.4g} times the clip norm (L_inf-CSGM, a baseline)."
        )
    error, lowest, std = (document[key] for key in ("rms_error", "lowest_rms_error", "model_noise_std"))
    if error is not None:
        restarts = f", at least {_or_dash(lowest, '.4g')} with any that restarts every epoch and has equal noise in all"
        absolute = f" Per coordinate, at clip norm and learning rate 1: {_or_dash(std, '.3g')}."
        yield (
            f"Noise in the model, root mean square over the run, per unit of noise multiplier and clip norm: {error:.4g} "
            f"with {planned.mechanism}, {document['independent_rms_error']:.4g} with independent noise"
            f"{'' if lowest is None else restarts}.{'' if std is None else absolute}"
        )
    yield f"Not covered: {'; '.join(planned.not_covered)}."


def _print_comparison(planned: Planned) -> None:
    """Print the table of keep probabilities: at the same epsilon if one was asked for, else at the same noise."""
    budget, chosen = planned.budget, planned.event.keep_probability
    is_tight = budget.accountant == "tight"
    rows = []
    for gamma in sorted({*KEEP_PROBABILITIES, chosen}, reverse=True):
        same_noise = None if budget.target is not None else planned.event.effective_noise_multiplier * gamma
        event = budget.event(gamma, same_noise)
        cells = [
            f"{gamma:g}",
            rounded_up(budget.spent(event).epsilon),
            f"{event.noise_multiplier:.4g}",
            f"{event.effective_noise_multiplier:.4g}",
            _or_dash(budget.mean_noise(event), ".3g"),
            _or_dash(budget.uplink_bytes(gamma), ",.0f"),
        ]
        if is_tight:
            cells.append(_or_dash(noise_saved(event, budget.epochs, delta=budget.delta), ".1%"))
        rows.append([f"[bold]{cell}[/bold]" for cell in cells] if gamma == chosen else cells)
    columns = (
        "keep probability",
        "epsilon",
        "noise multiplier",
        "of the mean",
        "mean noise std",
        "bytes per client",
        *(("less noise than rdp",) if is_tight else ()),
    )
    same = "noise of the mean" if budget.target is None else "epsilon"
    output.print_table(
        f"What compression costs at the same {same}", dict.fromkeys(columns, output.NUMBER), rows
    )


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


if __name__ == "__main__":
    main()
