"""What a run would cost, before it runs: `python -m experiments.plan epsilon=8 ...`.

From figures, the keys below: from exactly one of `epsilon` and `noise_multiplier` follows the other.
Nothing is trained and no data set is read: all noise is relative to the sensitivity of the mechanism, which
therefore does not change epsilon. What it changes is the error in the model, which is computed once the rounds of an
epoch are known, from `rounds_per_epoch` or from `clients` and `cohort_size`:

    python -m experiments.plan clients=3400 dimension=1000000 cohort_size=100 epsilon=2

From a run's own settings, those of simulate, all of which are in a group (`privacy.epsilon`) or choose one (`model=mlp`):

    python -m experiments.plan model=mlp privacy.epsilon=2

reads the run's data set and prints the plan that the run would follow, without training.

`output=json` prints one JSON document. Warnings, such as more noise than signal, are printed on stderr and are in the
document's `warnings`.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NoReturn

from experiments.cli import command, output
from experiments.pages.wording import bound, holds_for, text_of, words_of
from experiments.settings.groups import (
    MechanismSettings,
    factorize,
    find_family,
    lowest_rms_error,
)
from experiments.settings.log import messages
from experiments.settings.recorded import flattened
from experiments.settings.schema import Settings
from experiments.settings.values import PRINTED, Output, keyed
from fedmf.accounting import (
    EpochEvent,
    Ledger,
    calibrate_noise_multiplier,
    divergence,
    privacy_spent,
)
from fedmf.accounting.caveats import NOT_COVERED, TIGHT
from fedmf.errors import ParticipationError, SettingError
from fedmf.mechanisms import design_run, prefix_sum
from fedmf.outlook import about_cost, misgivings, noise_of_run
from fedmf.participation import Participation, rounds_that_fit
from fedmf.plan import Compression, Plan, PrivacyTarget, make_bounds, make_plan
from fedmf.randomness import PublicSeed
from fedmf.setting import ACCOUNTANTS, ADJACENCIES, REQUIRED, ROTATIONS, setting
from fedmf.updates.client_plan import resolve_linf_ratio
from fedmf.updates.rotation import padded_dimension
from fedmf.updates.wire import value_bytes

UNIT = "one client"
MOST_ROUNDS = 2**12  # of a run: beyond, the optimum takes longer to find than a plan should
# What is not known of a plan of which the cost is known alone.
UNKNOWN = (
    "floating_point", "uplink_bytes_per_client", "mean_noise_std", "rms_error", "last_error", "independent_rms_error",
    "lowest_rms_error", "model_noise_std", "noise_over_signal",
)  # fmt: skip


@dataclass(frozen=True)
class PlanSettings:
    """Keys of the command: the figures of a plan."""

    mechanism: MechanismSettings = setting(
        REQUIRED, "does not change epsilon: all is relative to its sensitivity", chosen="optimal"
    )
    momentum: float = setting(0.9, "of the server's optimizer, in [0, 1)")
    clients: int | None = setting(
        None, "N, clients with training examples; null: whether the cohorts fit is not checked", at_least=1
    )
    dimension: int | None = setting(None, "d, model parameters before padding; null: not known", at_least=1)
    cohort_size: int | None = setting(None, "n, clients of a round; null: not known", at_least=1)
    rounds_per_epoch: int | None = setting(
        None, "rounds of an epoch; null: as many disjoint cohorts as there are", at_least=1
    )
    epochs: int = setting(1, "times that every client takes part; the noise restarts in each", at_least=1)
    keep_probability: float = setting(
        1.0, "gamma, the share of the coordinates that a client sends, in (0, 1]"
    )
    rotation: str = setting(
        "hadamard", "what an update is rotated by before its coordinates are clipped", ROTATIONS
    )
    linf_over_l2: float | None = setting(
        None, "Delta_inf/Delta_2; null: the formula, at most 1, and 1 with rotation=identity"
    )
    delta: float = setting(1e-05, "of the statement, in (0, 1)")
    adjacency: str = setting("zero_out", "what neighbouring data sets differ by", ADJACENCIES)
    accountant: str = setting(
        "rdp",
        "Renyi divergence, or this project's own tighter bound (docs/theory.md)",
        ACCOUNTANTS,
    )
    epsilon: float | None = setting(None, "the epsilon to reach; exactly one of it and noise_multiplier")
    noise_multiplier: float | None = setting(
        None, "sigma over the sensitivity; exactly one of it and epsilon"
    )
    orders: tuple[float, ...] | None = setting(
        None, "such as [2,4.5,16]: print the Renyi divergence of one epoch at these orders; null: none"
    )
    output: Output = setting("text", PRINTED)


def from_figures(settings: PlanSettings) -> dict[str, Any]:
    """Return the plan that `settings` describe. No data set is read.

    Where dimension, cohort and rounds are not known it has the cost alone, without the error in the model.
    """
    with keyed("plan", ()):  # whose keys have no group: null in the place of None alone
        privacy = PrivacyTarget(
            settings.delta,
            settings.noise_multiplier,
            settings.epsilon,
            settings.adjacency,
            settings.accountant,
        )
    keep, orders = settings.keep_probability, settings.orders or ()
    clients, cohort_size, dimension = settings.clients, settings.cohort_size, settings.dimension
    rounds, problems = settings.rounds_per_epoch, []
    if clients and cohort_size:
        try:
            rounds = rounds_that_fit(clients, cohort_size, rounds)
        except ParticipationError as error:
            problems = [str(error)]
    if dimension and cohort_size and rounds and not problems:
        name, total = settings.mechanism.name, rounds * settings.epochs
        if total <= MOST_ROUNDS and find_family(name).suits(prefix_sum(rounds)):
            compression = Compression(keep, settings.rotation)
            plan = make_plan(
                dimension=dimension,
                participation=Participation(
                    clients or cohort_size * rounds, cohort_size, rounds, settings.epochs
                ),
                compression=compression,
                bounds=make_bounds(
                    l2_norm=1.0,
                    linf_norm=settings.linf_over_l2,
                    dimension=dimension,
                    cohort_size=cohort_size,
                    compression=compression,
                ),
                privacy=privacy,
                factorization=factorize(
                    name,
                    "run",
                    rounds,
                    settings.epochs,
                    beta=settings.momentum,
                    schedule="constant",
                ),
                seed=PublicSeed(0),
            )
            return of_plan(plan, UNIT, misgivings(plan), orders=orders)
        messages.info(
            f"the error in the model is not computed: {total} rounds are too many for {name} in a plan"
        )
    noise, ratio = settings.noise_multiplier, 1.0
    if keep < 1 or settings.linf_over_l2:  # without a mask it does not count
        ratio = resolve_linf_ratio(settings.linf_over_l2, dimension, cohort_size, rotation=settings.rotation)
    if noise is None:
        noise = calibrate_noise_multiplier(
            epsilon=settings.epsilon or 0.0,
            delta=privacy.delta,
            keep_probability=keep,
            linf_over_l2=ratio,
            epochs=settings.epochs,
            adjacency=privacy.adjacency,
            accountant=privacy.accountant,
        )
    event = EpochEvent(noise, keep, ratio)
    document = _cost(privacy, event, settings.epochs, UNIT, orders=orders)
    warnings = about_cost(
        event,
        epsilon=document["epsilon"],
        delta=privacy.delta,
        clients=clients,
        cohort_size=cohort_size,
        rounds_per_epoch=None if problems else rounds,
    )
    return document | {
        "uplink_bytes_per_client": dimension
        and value_bytes(padded_dimension(dimension, settings.rotation), keep, "float32"),
        "mean_noise_std": cohort_size and event.effective_noise_multiplier / cohort_size,
        "feasible": not problems,
        "warnings": [*problems, *warnings],
    }


@keyed("privacy", ("max_epsilon",))
def from_run(settings: Settings) -> dict[str, Any]:
    """Return the plan of the run that `settings` describe, of as many epochs as its max_epsilon lets begin.

    Reads the data set, for its clients and shapes, and builds the model. Raises a `FedmfError` for what cannot run as
    asked.
    """
    from experiments.settings.experiment import build  # torch, data and models take seconds to import

    messages.info(f"planning a run on {settings.dataset.name}: its data set is read, nothing is trained")
    experiment = build(settings)
    experiment.plan.start_epoch(Ledger())
    dataset = experiment.dataset
    return of_plan(experiment.plan, dataset.unit, experiment.misgivings, dataset.uncovered)


def of_plan(
    plan: Plan,
    unit: str,
    warnings: Sequence[str],
    uncovered: Sequence[str] = (),
    orders: Sequence[float] = (),
) -> dict[str, Any]:
    """Return what a plan costs and the noise that it leaves in the model.

    Errors are those of the accumulated sum, per unit of noise multiplier, clip norm and first learning rate: the root mean
    square over all rounds of the run, that of the last round of the epochs that may begin, and others to compare with.
    `counted_over_l2` is the radius that epsilon is counted with over the clip norm.
    """
    event, run, epochs = plan.epoch_event, plan.factorization, plan.affordable_epochs
    return {
        **_cost(plan.privacy, event, epochs, unit, uncovered, orders, plan.precision),
        "warnings": list(warnings),
        "counted_over_l2": plan.counted_over_l2,
        "floating_point": plan.floating_point and asdict(plan.floating_point),
        "uplink_bytes_per_client": plan.value_bytes,
        "mean_noise_std": plan.mean_noise_std,
        "rms_error": run.rms_error,
        "last_error": float(run.per_round_error[epochs * run.rounds - 1]),
        "independent_rms_error": design_run("independent", run.workloads).rms_error,
        "lowest_rms_error": lowest_rms_error(run),
        "model_noise_std": plan.mean_noise_std * run.rms_error,
        "noise_over_signal": noise_of_run(plan),
    }


def _cost(
    privacy: PrivacyTarget,
    event: EpochEvent,
    epochs: int,
    unit: str,
    uncovered: Sequence[str] = (),
    orders: Sequence[float] = (),
    precision: float = 0.0,
) -> dict[str, Any]:
    """Return the JSON document of a plan of which the epsilon is known alone."""
    spent, tight = (
        privacy_spent(
            event,
            epochs,
            delta=privacy.delta,
            adjacency=privacy.adjacency,
            accountant=accountant,
            precision=precision,
        )
        for accountant in (privacy.accountant, "tight" if privacy.adjacency == "zero_out" else "rdp")
    )
    # An order is written as short as it can be: 2, 1.1, 2.5.
    curve = {
        repr(order).removesuffix(".0"): divergence({event: 1}, order, spent.adjacency) for order in orders
    }
    return {
        "epsilon": spent.epsilon,
        "epsilon_rdp": spent.epsilon_rdp,
        "epsilon_tight": tight.epsilon_tight,
        "epsilon_tight_is": TIGHT if privacy.adjacency == "zero_out" else None,
        "epsilon_exact": spent.epsilon_exact,
        "noise_multiplier": event.noise_multiplier,
        "effective_noise_multiplier": event.effective_noise_multiplier,
        "linf_over_l2": event.linf_over_l2,
        "geometry": privacy.geometry,
        "counted_over_l2": 1.0,
        "epochs": epochs,
        "delta": spent.delta,
        "order": spent.order,
        "adjacency": spent.adjacency,
        "unit_of_privacy": unit,
        "not_covered": [*NOT_COVERED, *uncovered],
        "accountant": spent.accountant,
        "rdp": curve or None,
        "feasible": True,
        "warnings": [],
        **dict.fromkeys(UNKNOWN),
    }


def plan(settings: PlanSettings | Settings) -> None:
    """Print the plan that `settings` describe to stdout, and its warnings to stderr."""
    document = from_figures(settings) if isinstance(settings, PlanSettings) else from_run(settings)
    for warning in document["warnings"]:
        messages.warning(warning)
    output.show(settings.output, document, lambda: print_text(document))


def main(argv: Sequence[str]) -> NoReturn:
    """Print the plan from figures, or from the settings of a run where one of these is given, such as model=mlp.

    A figure next to a setting of a run is an error: the numbers of clients and parameters follow from the run's data
    and model.
    """
    keys = [text.lstrip("+~").partition("=")[0] for text in argv]
    of_a_run = {item.name for item in fields(Settings)} | {"experiment", "hydra"}
    settings = [key for key in keys if key.partition(".")[0] in of_a_run - {"mechanism", "output"}]
    figures = [key for key in keys if key in {item.name for item in fields(PlanSettings)} - of_a_run]
    if settings and figures and not {"-h", "--help"} & set(argv):
        command.end_with(lambda: command.guard(lambda: _refuse_both(figures, settings)))
    if settings:
        command.run(plan, "simulate", Settings, __doc__, argv)
    command.run(plan, "plan", PlanSettings, __doc__, argv)


def _refuse_both(figures: Sequence[str], settings: Sequence[str]) -> NoReturn:
    """Raise `SettingError` for figures of a plan next to settings of a run."""
    raise SettingError(
        f"{', '.join(figures)}: figures of a plan, next to {', '.join(settings)}, which a run has. Give figures alone "
        "(clients=1000 epsilon=2), or a run's settings alone (dataset=digits privacy.epsilon=2)."
    )


def print_text(document: dict[str, Any]) -> None:
    """Print the plan: epsilon with all that it holds for, and every figure."""
    how = TIGHT if document["accountant"] == "tight" else f"{document['accountant']} accountant"
    claim = (
        f"epsilon = {bound(document['epsilon'])} "
        f"{holds_for(document['delta'], document['unit_of_privacy'], document['adjacency'])} "
        f"({'exact' if document['epsilon_exact'] else how}); epochs (one participation each): {document['epochs']}. "
        f"Not covered: {'; '.join(document['not_covered'])}."
    )
    output.console().print(
        claim if document["noise_multiplier"] else "NOT private: noise_multiplier is 0, epsilon is infinite."
    )
    rows = [
        (words_of(key), text_of(key, value))
        for key, value in flattened(document)
        if value is not None and not isinstance(value, list)
    ]
    output.print_table("Plan", {}, rows)


if __name__ == "__main__":
    main(sys.argv[1:])
