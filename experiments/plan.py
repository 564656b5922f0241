"""Compute what a run costs before it runs: `python -m experiments.plan epsilon=8 ...`.

With the keys below it computes epsilon from `noise_multiplier`, or the noise multiplier from `epsilon`. It trains nothing and reads
no dataset. All noise is relative to the mechanism's sensitivity, so the mechanism does not change epsilon. It changes the error
in the model, which is printed if the rounds of an epoch are known: from `rounds_per_epoch`, or from `clients` and `cohort_size`:

    python -m experiments.plan clients=3400 dimension=1000000 cohort_size=100 epsilon=2

Without `cohort_size` it recommends settings. It prints a table of cohort sizes, keep probabilities and epochs (only of those that are
not given), with the rounds, the noise over the signal and the bytes that a client sends, and marks the recommended row:

    python -m experiments.plan clients=50000 dimension=2000000 epsilon=4 delta=1e-6

With a run's own settings, those of simulate, it reads the run's dataset and prints the run's plan. All of these are in a group
(`privacy.epsilon`) or choose one (`model=mlp`):

    python -m experiments.plan model=mlp privacy.epsilon=2

If population.cohort_size has its default, the table is printed too, with several keep probabilities and epochs if these have their
defaults. If there are fewer clients than that default, the plan is that of the recommended settings.

`output=json` prints one JSON document. Warnings, such as more noise than signal, go to stderr and into the document's `warnings`.
"""

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from functools import partial
from typing import Any, NoReturn

from client.data import Dataset
from experiments.cli import command, output
from experiments.cli.planned import print_text
from experiments.settings.compose import compose
from experiments.settings.figures import (
    MOST_ROUNDS,
    PlanSettings,
    advised,
    factorize_once,
    plan_of,
    plans_to_try,
    privacy_of,
    sizes_of,
)
from experiments.settings.groups import lowest_rms_error
from experiments.settings.log import messages
from experiments.settings.schema import Settings
from experiments.settings.values import keyed
from fedmf.accounting import EpochEvent, Ledger, calibrate_noise_multiplier, divergence, privacy_spent
from fedmf.accounting.caveats import NOT_COVERED, TIGHT
from fedmf.errors import ParticipationError, SettingError
from fedmf.mechanisms import design_run
from fedmf.outlook import about_cost, misgivings, noise_of_run
from fedmf.participation import rounds_that_fit
from fedmf.plan import Plan, PrivacyTarget
from fedmf.updates.client_plan import default_linf_ratio
from fedmf.updates.rotation import padded_dimension
from fedmf.updates.wire import value_bytes

UNIT = "one client"
KEYS_OF_A_RUN = ("population.cohort_size", "compression.keep_probability", "population.epochs")
# What is not known of a plan of which the cost is known alone.
UNKNOWN = (
    "floating_point", "uplink_bytes_per_client", "mean_noise_std", "rms_error", "last_error", "independent_rms_error",
    "lowest_rms_error", "model_noise_std", "noise_over_signal",
)  # fmt: skip


def from_figures(settings: PlanSettings) -> dict[str, Any]:
    """Return the plan that `settings` describe. No dataset is read.

    Where clients, dimension and epsilon are known and the cohort is not, it is that of the setting that is recommended,
    with the table. Where dimension, cohort and rounds are not known it has the cost alone, without the error in the model.
    """
    clients, cohort_size, rounds = settings.clients, settings.cohort_size, settings.rounds_per_epoch
    if clients and settings.dimension and settings.epsilon and cohort_size is rounds is None:
        plans = plans_to_try(partial(plan_of, settings), clients, settings.epochs, settings.keep_probability)
        if not plans:
            raise SettingError(
                f"cohort_size is null, and the runs of a table would have more than {MOST_ROUNDS} rounds; give cohort_size."
            )
        chosen, advice = advised(plans, ("cohort_size", "keep_probability", "epochs"))
        return of_plan(chosen, UNIT, misgivings(chosen), orders=settings.orders or ()) | advice
    epochs = settings.epochs or 1
    keep = 1.0 if settings.keep_probability is None else settings.keep_probability
    problems = []
    if clients and cohort_size:
        try:
            rounds = rounds_that_fit(clients, cohort_size, rounds)
        except ParticipationError as error:
            problems = [str(error)]
    if settings.dimension and cohort_size and rounds and not problems:
        if (plan := plan_of(settings, cohort_size, rounds, epochs, keep)) is not None:
            return of_plan(plan, UNIT, misgivings(plan), orders=settings.orders or ())
        messages.info(
            f"the error in the model is not computed: {rounds * epochs} rounds are too many for "
            f"{settings.mechanism.name} in a plan"
        )
    return of_cost(settings, rounds, epochs, keep, problems)


def of_cost(
    settings: PlanSettings, rounds: int | None, epochs: int, keep: float, problems: Sequence[str]
) -> dict[str, Any]:
    """Return the plan of which the cost is known alone; `problems` are why cohorts do not fit."""
    privacy = privacy_of(settings)
    clients, cohort_size, dimension = settings.clients, settings.cohort_size, settings.dimension
    noise, ratio = settings.noise_multiplier, min(1.0, settings.linf_over_l2 or 1.0)
    # Without a mask the ratio does not count.
    if keep < 1 and settings.linf_over_l2 is None and settings.rotation != "identity":
        if dimension is None or cohort_size is None:
            raise SettingError(
                f"linf_over_l2 is not given, and its formula needs both dimension ({dimension}) and cohort_size "
                f"({cohort_size}); give those two, or linf_over_l2."
            )
        ratio = default_linf_ratio(dimension, cohort_size)
    if noise is None:
        noise = calibrate_noise_multiplier(
            epsilon=settings.epsilon or 0.0,
            delta=privacy.delta,
            keep_probability=keep,
            linf_over_l2=ratio,
            epochs=epochs,
            adjacency=privacy.adjacency,
            accountant=privacy.accountant,
        )
    event = EpochEvent(noise, keep, ratio)
    document = {
        "clients": clients,
        "cohort_size": cohort_size,
        "rounds_per_epoch": rounds,
        "rounds": rounds and rounds * epochs,
        "parameters": dimension,
        "keep_probability": keep,
    } | _cost(privacy, event, epochs, UNIT, orders=settings.orders or ())
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

    With the table where its cohort has its default; a default that is more than there are clients is replaced by what the table
    recommends. Reads the dataset, for its clients and shapes, and builds the model. Raises a `FedmfError` for what cannot run
    as asked.
    """
    # torch, data and models take seconds to import
    from experiments.settings.data import arguments, load_dataset, print_notes
    from experiments.settings.experiment import build

    messages.info(f"planning a run on {settings.dataset.name}: its dataset is read, nothing is trained")
    dataset = load_dataset(arguments(settings.dataset), settings.model.name)
    print_notes(dataset)
    who, keep, usual = settings.population, settings.compression.keep_probability, Settings.population
    advice: dict[str, Any] = {}
    if (
        settings.privacy.epsilon is not None
        and who.cohort_size == usual.cohort_size
        and who.rounds_per_epoch is None
    ):
        messages.info(
            f"population.cohort_size has its default, {who.cohort_size}: other cohorts are compared"
        )
        plans = plans_to_try(
            partial(_with_other_sizes, settings, dataset),
            who.min_available or len(dataset.clients),
            None if who.epochs == usual.epochs else who.epochs,
            None if keep == Settings.compression.keep_probability else keep,
        )
        if plans:
            chosen, advice = advised(plans, KEYS_OF_A_RUN)
            sizes = chosen.participation
            if sizes.clients < who.cohort_size:
                messages.info(f"there are {sizes.clients} clients: the plan is of the recommended setting")
                settings = _resized(
                    settings, sizes.cohort_size, sizes.epochs, chosen.compression.keep_probability
                )
    experiment = build(settings, dataset)
    experiment.plan.start_epoch(Ledger())
    return (
        of_plan(experiment.plan, dataset.unit, experiment.misgivings, experiment.dataset.uncovered) | advice
    )


def _with_other_sizes(
    settings: Settings, dataset: Dataset, cohort_size: int, rounds: int, epochs: int, keep_probability: float
) -> Plan | None:
    """Return the plan of a run with these in the place of its own, None where there is none, or too many rounds to design here."""
    from experiments.settings.experiment import build

    if rounds * epochs > MOST_ROUNDS:
        return None
    settings = _resized(settings, cohort_size, epochs, keep_probability)
    with suppress(SettingError):
        return build(settings, dataset, factorize_once).plan
    return None


def _resized(settings: Settings, cohort_size: int, epochs: int, keep_probability: float) -> Settings:
    return replace(
        settings,
        population=replace(settings.population, cohort_size=cohort_size, epochs=epochs),
        compression=replace(settings.compression, keep_probability=keep_probability),
    )


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
    document = {
        **sizes_of(plan),
        "rounds": epochs * run.rounds,
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
    if plan.clipping is not None and plan.noise_multiplier:  # what an adaptive clip norm costs
        alone = replace(plan, clipping=None).calibrated(plan.spent().epsilon, precision=plan.precision)
        document |= {
            "more_noise_for_clip_norm": plan.noise_multiplier / alone.noise_multiplier - 1,
            "count_noise": plan.count_noise,
            "count_noise_share": plan.count_noise
            / (plan.participation.cohort_size * plan.participation.rounds_per_epoch),
        }
    return document


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
    has_tight = privacy.adjacency == "zero_out" and (event.keep_probability == 1 or event.count_noise is None)
    spent, tight = (
        privacy_spent(
            event,
            epochs,
            delta=privacy.delta,
            adjacency=privacy.adjacency,
            accountant=accountant,
            precision=precision,
        )
        for accountant in (privacy.accountant, "tight" if has_tight else "rdp")
    )
    # An order is written as short as it can be: 2, 1.1, 2.5.
    curve = {
        repr(order).removesuffix(".0"): divergence({event: 1}, order, spent.adjacency) for order in orders
    }
    return {
        "epsilon": spent.epsilon,
        "epsilon_rdp": spent.epsilon_rdp,
        "epsilon_tight": tight.epsilon_tight,
        "epsilon_tight_is": TIGHT if has_tight else None,
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
    document = planned(settings)
    for warning in document["warnings"]:
        messages.warning(warning)
    output.show(settings.output, document, lambda: print_text(document))


def planned(settings: PlanSettings | Settings) -> dict[str, Any]:
    return from_figures(settings) if isinstance(settings, PlanSettings) else from_run(settings)


def asked(arguments: Sequence[str]) -> PlanSettings | Settings:
    """Return the figures that arguments describe, or the settings of a run where one of these is given, such as model=mlp.

    Raises `SettingError` for both: the numbers of clients and parameters follow from a run's data and model.
    """
    figures, of_a_run = _sorted_keys(arguments)
    if figures and of_a_run:
        raise SettingError(
            f"{', '.join(figures)}: figures of a plan, next to {', '.join(of_a_run)}, which a run has. Give figures alone "
            "(clients=1000 epsilon=2), or a run's settings alone (dataset=digits privacy.epsilon=2)."
        )
    if not of_a_run:
        return compose("plan", arguments, PlanSettings)
    from experiments.session.resume import run_settings  # with torch, and the bars of sweeps
    from experiments.settings.jobs import without_files

    return run_settings(without_files(arguments))


def _sorted_keys(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the keys among `arguments` that are figures of a plan alone, and those that are settings of a run alone."""
    keys = [text.lstrip("+~").partition("=")[0] for text in arguments]
    of_a_run = {item.name for item in fields(Settings)} | {"experiment", "hydra", "as", "--config"}
    figures = {item.name for item in fields(PlanSettings)} - of_a_run
    return (
        [key for key in keys if key in figures],
        [key for key in keys if key.partition(".")[0] in of_a_run - {"mechanism", "output"}],
    )


def main(argv: Sequence[str]) -> NoReturn:
    """Print the plan that arguments describe; help is on what they give."""
    kind: type[PlanSettings | Settings] = Settings if _sorted_keys(argv)[1] else PlanSettings
    command.run(plan, "simulate" if kind is Settings else "plan", kind, __doc__, argv, asked)


if __name__ == "__main__":
    main(sys.argv[1:])
