"""A plan: what a run would cost, from the figures of the command or from the settings of a run. Nothing is trained."""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from experiments.settings.factorization import factorize, find_family, lowest_rms_error
from experiments.settings.keys import keyed
from experiments.settings.mechanism import MechanismSettings, WorkloadName
from experiments.settings.output import PRINTED, Output
from fedmf.accounting import (
    EpochEvent,
    Ledger,
    PrivacySpent,
    calibrate_noise_multiplier,
    divergence,
    mean_noise_std,
    privacy_spent,
    resolve_linf_ratio,
)
from fedmf.accounting.caveats import NOT_COVERED, TIGHT
from fedmf.checks import check_at_least, check_below_one, check_choice
from fedmf.choices import ACCOUNTANTS, ADJACENCIES, ROTATIONS, SCHEDULES
from fedmf.errors import ParticipationError
from fedmf.mechanisms import design_run, prefix_sum
from fedmf.outlook import about_run, misgivings, noise_of_run
from fedmf.participation import Participation, rounds_that_fit
from fedmf.plan import Compression, Plan, PrivacyTarget, make_bounds, make_plan
from fedmf.randomness import PublicSeed
from fedmf.setting import REQUIRED, setting
from fedmf.updates.rotation import padded_dimension
from fedmf.updates.wire import value_bytes

if TYPE_CHECKING:
    from experiments.settings.schema import Settings

_log = logging.getLogger(__name__)

UNIT = "one client"
ERRORS = (
    "rms_error", "last_error", "independent_rms_error", "lowest_rms_error", "model_noise_std", "noise_over_signal",
)  # fmt: skip
MOST_ROUNDS = 2**12  # of a run: beyond, the optimum takes longer to find than a plan should


@dataclass(frozen=True)
class PlanSettings:
    """Keys of the command: the figures of a plan."""

    mechanism: MechanismSettings = setting(
        REQUIRED, "does not change epsilon: all is relative to its sensitivity", chosen="optimal"
    )
    workload: WorkloadName = setting(WorkloadName.run, "what the noise is fitted to, as in simulate")
    momentum: float = setting(0.9, "of the server's optimizer, in [0, 1)")
    schedule: str = setting("constant", "of the learning rate, over all rounds", SCHEDULES)
    clients: int | None = setting(
        None, "N, clients with training examples; null: whether the cohorts fit is not checked"
    )
    dimension: int | None = setting(None, "d, model parameters before padding; null: not known")
    cohort_size: int | None = setting(None, "n, clients of a round; null: not known")
    rounds_per_epoch: int | None = setting(
        None, "rounds of an epoch; null: as many disjoint cohorts as there are"
    )
    epochs: int = setting(1, "times that every client takes part; the noise restarts in each")
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
        "Renyi divergence, or this project's own tighter bound (docs/tighter_accountant.md)",
        ACCOUNTANTS,
    )
    epsilon: float | None = setting(None, "the epsilon to reach; exactly one of it and noise_multiplier")
    noise_multiplier: float | None = setting(
        None, "sigma over the sensitivity; exactly one of it and epsilon"
    )
    orders: tuple[float, ...] | None = setting(
        None, "such as [2,4.5,16]: print the Renyi divergence of one epoch at these orders; null: none"
    )
    output: Output = setting(Output.text, PRINTED)

    def __post_init__(self) -> None:
        for name in ("clients", "dimension", "cohort_size", "rounds_per_epoch", "epochs"):
            if (value := getattr(self, name)) is not None:
                check_at_least(name, value, 1)
        check_below_one("momentum", self.momentum)
        check_choice("schedule", self.schedule, SCHEDULES)


@dataclass(frozen=True)
class Budget:
    """What all keep probabilities of a plan have in common; None is what is not known.

    `linf_over_l2` is relative to the L2 radius that epsilon is counted with, and `counted_over_l2` is that radius over
    Delta_2: 1, but with geometry "linf". A mask chooses from `padded` coordinates. `precision` is what finite precision adds.
    """

    privacy: PrivacyTarget
    epochs: int
    linf_over_l2: float | None
    cohort_size: int | None
    padded: int | None
    value_type: str = "float32"
    counted_over_l2: float = 1.0
    precision: float = 0.0

    def spent(self, event: EpochEvent, accountant: str | None = None) -> PrivacySpent:
        """Return what all epochs cost, by the accountant of the plan or another."""
        return privacy_spent(
            event,
            self.epochs,
            delta=self.privacy.delta,
            adjacency=self.privacy.adjacency,
            accountant=accountant or self.privacy.accountant,
            precision=self.precision,
        )

    def event(self, keep_probability: float, noise_multiplier: float) -> EpochEvent:
        """Return one epoch with the noise that the plan's epsilon needs, or with `noise_multiplier` where it has none."""
        ratio = 1.0 if self.linf_over_l2 is None else self.linf_over_l2
        if self.privacy.epsilon is not None:
            noise_multiplier = calibrate_noise_multiplier(
                epsilon=self.privacy.epsilon,
                delta=self.privacy.delta,
                keep_probability=keep_probability,
                linf_over_l2=ratio,
                epochs=self.epochs,
                adjacency=self.privacy.adjacency,
                accountant=self.privacy.accountant,
                precision=self.precision,
            )
        return EpochEvent(noise_multiplier, keep_probability, ratio)

    def uplink_bytes(self, keep_probability: float) -> float | None:
        """Return the expected bytes of values a client sends in a round; None without a dimension."""
        return None if self.padded is None else value_bytes(self.padded, keep_probability, self.value_type)

    def mean_noise(self, event: EpochEvent) -> float | None:
        """Return the noise per coordinate of the mean at Delta_2 = 1; None without a cohort size."""
        if self.cohort_size is None:
            return None
        return self.counted_over_l2 * mean_noise_std(
            event.noise_multiplier, keep_probability=event.keep_probability, cohort_size=self.cohort_size
        )


@dataclass(frozen=True)
class Planned:
    """A plan: what keep probabilities share, the event of an epoch, and the JSON document."""

    budget: Budget
    event: EpochEvent
    document: dict[str, Any]


def from_figures(settings: PlanSettings) -> Planned:
    """Return the plan that `settings` describe. No data set is read.

    Where dimension, cohort and rounds are not known it has the cost alone, without the error in the model.
    """
    privacy = PrivacyTarget(
        settings.delta, settings.noise_multiplier, settings.epsilon, settings.adjacency, settings.accountant
    )
    compression = Compression(settings.keep_probability, settings.rotation)
    clients, cohort_size, dimension = settings.clients, settings.cohort_size, settings.dimension
    rounds, problems = settings.rounds_per_epoch, []
    if clients and cohort_size:
        try:
            rounds = rounds_that_fit(clients, cohort_size, rounds)
        except ParticipationError as error:
            problems.append(str(error))
    if dimension and cohort_size and rounds and not problems and _is_short(settings, rounds):
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
                settings.mechanism.name,
                settings.workload,
                rounds,
                settings.epochs,
                beta=settings.momentum,
                schedule=settings.schedule,
            ),
            seed=PublicSeed(0),
        )
        return of_plan(plan, UNIT, misgivings(plan), orders=settings.orders or ())
    ratio = None
    is_known = settings.linf_over_l2 or settings.rotation == "identity" or (dimension and cohort_size)
    if is_known or settings.keep_probability < 1:
        ratio = resolve_linf_ratio(settings.linf_over_l2, dimension, cohort_size, rotation=settings.rotation)
    padded = None if dimension is None else padded_dimension(dimension, settings.rotation)
    budget = Budget(privacy, settings.epochs, ratio, cohort_size, padded)
    event = budget.event(settings.keep_probability, settings.noise_multiplier or 0.0)
    warnings = about_run(
        event,
        epsilon=budget.spent(event).epsilon,
        delta=settings.delta,
        noise=None,
        dimension=dimension,
        clients=clients,
        cohort_size=cohort_size,
        rounds_per_epoch=None if problems else rounds,
        calibrate=None,
    )
    document = _document(budget, event, UNIT, [*problems, *warnings], orders=settings.orders or ())
    return Planned(budget, event, document | {"feasible": not problems})


@keyed("privacy", ("max_epsilon",))
def from_run(settings: "Settings") -> Planned:
    """Return the plan of the run that `settings` describe, of as many epochs as its max_epsilon lets begin.

    Reads the data set, for its clients and shapes, and builds the model. Raises a `FedmfError` for what cannot run as
    asked.
    """
    from experiments.settings.experiment import build  # it needs torch, data and models, which take seconds

    _log.info("planning a run on %s: its data set is read, nothing is trained", settings.dataset.name)
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
) -> Planned:
    """Return what a plan costs and the noise that it leaves in the model.

    Errors are those of the accumulated sum, per unit of noise multiplier, clip norm and first learning rate: the root mean
    square over all rounds of the run, that of the last round of the epochs that may begin, and others to compare with.
    """
    budget = Budget(
        privacy=plan.privacy,
        epochs=plan.affordable_epochs,
        linf_over_l2=None if plan.bounds.radius is None else plan.linf_over_l2,
        cohort_size=plan.participation.cohort_size,
        padded=plan.rotation.padded,
        value_type=plan.compression.value_type,
        counted_over_l2=(plan.counted_radius or 1.0) / (plan.bounds.radius or 1.0),
        precision=plan.precision,
    )
    event, run = plan.epoch_event, plan.factorization
    noise = {
        "floating_point": plan.floating_point and asdict(plan.floating_point),
        "rms_error": run.rms_error,
        "last_error": float(run.per_round_error[budget.epochs * run.rounds - 1]),
        "independent_rms_error": design_run("independent", run.workloads).rms_error,
        "lowest_rms_error": lowest_rms_error(run),
        "model_noise_std": (budget.mean_noise(event) or 0.0) * run.rms_error,
        "noise_over_signal": noise_of_run(plan),
    }
    document = _document(budget, event, unit, warnings, uncovered, orders)
    return Planned(budget, event, document | noise)


def _document(
    budget: Budget,
    event: EpochEvent,
    unit: str,
    warnings: Sequence[str],
    uncovered: Sequence[str] = (),
    orders: Sequence[float] = (),
) -> dict[str, Any]:
    """Return the JSON document of a plan of which the noise in the model is not known."""
    spent, is_zero_out = budget.spent(event), budget.privacy.adjacency == "zero_out"
    # An order is written as short as it can be: 2, 1.1, 2.5.
    curve = {
        repr(order).removesuffix(".0"): divergence({event: 1}, order, spent.adjacency) for order in orders
    }
    return {
        "epsilon": spent.epsilon,
        "epsilon_rdp": spent.epsilon_rdp,
        "epsilon_tight": budget.spent(event, "tight").epsilon_tight if is_zero_out else None,
        "epsilon_tight_is": TIGHT if is_zero_out else None,
        "epsilon_exact": spent.epsilon_exact,
        "noise_multiplier": event.noise_multiplier,
        "effective_noise_multiplier": event.effective_noise_multiplier,
        "linf_over_l2": event.linf_over_l2,
        "geometry": budget.privacy.geometry,
        "counted_over_l2": budget.counted_over_l2,
        "delta": spent.delta,
        "floating_point": None,
        "order": spent.order,
        "adjacency": spent.adjacency,
        "unit_of_privacy": unit,
        "not_covered": [*NOT_COVERED, *uncovered],
        "accountant": spent.accountant,
        "rdp": curve or None,
        "feasible": True,
        "warnings": list(warnings),
        "uplink_bytes_per_client": budget.uplink_bytes(event.keep_probability),
        "mean_noise_std": budget.mean_noise(event),
        **dict.fromkeys(ERRORS),
    }


def _is_short(settings: PlanSettings, rounds: int) -> bool:
    """Return whether the mechanism can be designed in the time of a plan; log where it cannot."""
    name, total = settings.mechanism.name, rounds * settings.epochs
    if total <= MOST_ROUNDS and find_family(name).suits(prefix_sum(rounds)):
        return True
    _log.warning(
        "the error in the model is not computed: %d rounds are too many for %s in a plan", total, name
    )
    return False
