"""A plan: what a run would cost, from the figures of the command or from the settings of a run. Nothing is trained."""

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from experiments.settings.keys import keyed
from experiments.settings.mechanism import MechanismSettings, WorkloadName
from experiments.settings.output import PRINTED, Output
from fedmf.accounting import (
    EpochEvent,
    FloatingPoint,
    Ledger,
    PrivacySpent,
    calibrate_noise_multiplier,
    check_accountant,
    counted_radius,
    counted_ratio,
    divergence,
    finite_precision,
    mean_noise_std,
    privacy_spent,
    resolve_linf_ratio,
)
from fedmf.accounting.caveats import LARGEST, NOT_COVERED, TIGHT
from fedmf.accounting.floating_point import MOST, check_price
from fedmf.checks import (
    check_at_least,
    check_below_one,
    check_choice,
    check_keep_probability,
    check_open_unit,
    check_positive,
)
from fedmf.choices import ACCOUNTANTS, ADJACENCIES, GEOMETRIES, ROTATIONS, SCHEDULES
from fedmf.errors import ParticipationError, SettingError
from fedmf.outlook import about_run, noise_of_run, noise_over_signal
from fedmf.participation import rounds_that_fit
from fedmf.setting import REQUIRED, setting
from fedmf.updates.rotation import padded_dimension
from fedmf.updates.wire import value_bytes

if TYPE_CHECKING:
    from experiments.settings.schema import Settings
    from fedmf.mechanisms import RunFactorization

_log = logging.getLogger(__name__)

UNIT = "one client"
MOST_ROUNDS = 2**12  # of a run: beyond, the optimum takes longer to find than a plan should
ERRORS = ("rms_error", "last_error", "independent_rms_error", "lowest_rms_error")


@dataclass(frozen=True)
class PlanSettings:
    """Keys of the command: the figures of a plan. Raises `SettingError` unless one of epsilon and noise_multiplier is given."""

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
    geometry: str = setting(
        "l2",
        "the bounds that epsilon is counted from: both, or all coordinates at the L-infinity one (L_inf-CSGM)",
        GEOMETRIES,
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
        check_keep_probability(self.keep_probability)
        check_choice("rotation", self.rotation, ROTATIONS)
        if (self.epsilon is None) == (self.noise_multiplier is None):
            instead = ", or settings of a run, such as model=mlp" if self.epsilon is None else ""
            raise SettingError(
                f"epsilon is {self.epsilon} and noise_multiplier is {self.noise_multiplier}; give exactly one of them{instead}."
            )
        if self.epsilon is not None:
            check_positive("epsilon", self.epsilon)
        check_open_unit("delta", self.delta)
        check_choice("adjacency", self.adjacency, ADJACENCIES)
        check_accountant(self.accountant, self.adjacency)
        check_choice("geometry", self.geometry, GEOMETRIES)


@dataclass(frozen=True)
class Budget:
    """What all keep probabilities of a plan have in common; None is what is not known.

    `target` is the epsilon that the noise is calibrated to; `linf_over_l2` is relative to the L2 radius that epsilon is
    counted with, and `counted_over_l2` is that radius over Delta_2: 1, but with geometry "linf". A mask chooses from
    `padded` coordinates. `floating_point` is what finite precision adds.
    """

    target: float | None
    epochs: int
    delta: float
    adjacency: str
    accountant: str
    geometry: str
    linf_over_l2: float
    counted_over_l2: float
    cohort_size: int | None
    padded: int | None
    value_type: str = "float32"
    floating_point: FloatingPoint | None = None

    @property
    def _terms(self) -> dict[str, Any]:
        precision = 0.0 if self.floating_point is None else self.floating_point.a
        return {
            "epochs": self.epochs,
            "delta": self.delta,
            "adjacency": self.adjacency,
            "accountant": self.accountant,
            "precision": precision,
        }

    def spent(self, event: EpochEvent) -> PrivacySpent:
        """Return what all epochs cost."""
        return privacy_spent(event, **self._terms)

    def event(self, keep_probability: float, noise_multiplier: float | None = None) -> EpochEvent:
        """Return one epoch with this noise multiplier; None: with the one that `target` needs."""
        if noise_multiplier is None:
            assert self.target is not None  # a plan has one of the two
            noise_multiplier = calibrate_noise_multiplier(
                epsilon=self.target,
                keep_probability=keep_probability,
                linf_over_l2=self.linf_over_l2,
                **self._terms,
            )
        return EpochEvent(noise_multiplier, keep_probability, self.linf_over_l2)

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
    """A plan, from figures or from the settings of a run; None is what is not known.

    `errors` are those of `errors_of`; `not_covered` is what no epsilon of the plan covers; `comparable`: whether other keep
    probabilities can be costed.
    """

    budget: Budget
    event: EpochEvent
    mechanism: str
    errors: Mapping[str, float | None]
    noise_over_signal: float | None
    unit: str
    not_covered: tuple[str, ...]
    orders: tuple[float, ...] | None
    feasible: bool
    comparable: bool
    warnings: tuple[str, ...]


def from_figures(settings: PlanSettings) -> Planned:
    """Return the plan that `settings` describe. No data set is read."""
    rounds, problem = _rounds_per_epoch(settings)
    run = None if rounds is None else _factorization(settings, rounds)
    is_known = (
        settings.linf_over_l2 is not None
        or settings.rotation == "identity"
        or None not in (settings.dimension, settings.cohort_size)
    )
    budget = _with_precision(_budget(settings, is_known), settings, run)
    event = budget.event(settings.keep_probability, settings.noise_multiplier)
    mean_noise = budget.mean_noise(event)
    ratio = (
        None
        if run is None or mean_noise is None
        else noise_over_signal(
            mean_noise=mean_noise,
            error=float(run.per_round_error[-1]),
            reach=float(run.per_round_reach[-1]),
        )
    )
    warnings = about_run(
        event,
        epsilon=budget.spent(event).epsilon,
        delta=settings.delta,
        noise=ratio,
        dimension=settings.dimension,
        clients=settings.clients,
        cohort_size=settings.cohort_size,
        rounds_per_epoch=rounds,
        calibrate=None if budget.target is None else lambda keep: budget.event(keep).noise_multiplier,
    )
    return Planned(
        budget=budget,
        event=event,
        mechanism=f"{settings.mechanism.name} (workload={settings.workload})",
        errors=dict.fromkeys(ERRORS) if run is None else errors_of(run),
        noise_over_signal=ratio,
        unit=UNIT,
        not_covered=NOT_COVERED,
        orders=settings.orders,
        feasible=problem is None,
        comparable=is_known,
        warnings=warnings if problem is None else (problem, *warnings),
    )


@keyed("privacy", ("max_epsilon",))
def from_run(settings: "Settings") -> Planned:
    """Return the plan of the run that `settings` describe, of as many epochs as its max_epsilon lets begin.

    Reads the data set, for its clients and shapes, and builds the model. Raises a `FedmfError` for what cannot run as
    asked.
    """
    from experiments.settings.experiment import build  # it needs torch, data and models, which take seconds

    _log.info("planning a run on %s: its data set is read, nothing is trained", settings.dataset.name)
    experiment = build(settings)
    plan, dataset = experiment.plan, experiment.dataset
    plan.start_epoch(Ledger())
    epochs = plan.affordable_epochs
    return Planned(
        budget=Budget(
            target=plan.privacy.epsilon,
            epochs=epochs,
            delta=plan.privacy.delta,
            adjacency=plan.privacy.adjacency,
            accountant=plan.privacy.accountant,
            geometry=plan.privacy.geometry,
            linf_over_l2=plan.linf_over_l2,
            counted_over_l2=(plan.counted_radius or 1.0) / (plan.bounds.radius or 1.0),
            cohort_size=plan.participation.cohort_size,
            padded=plan.rotation.padded,
            value_type=plan.compression.value_type,
            floating_point=plan.floating_point,
        ),
        event=plan.epoch_event,
        mechanism=f"{settings.mechanism.name} (workload={settings.workload})",
        errors=errors_of(plan.factorization, epochs * plan.participation.rounds_per_epoch),
        noise_over_signal=noise_of_run(plan),
        unit=dataset.unit,
        not_covered=(*NOT_COVERED, *dataset.uncovered),
        orders=None,
        feasible=True,
        comparable=plan.bounds.radius is not None,
        warnings=experiment.misgivings,
    )


def errors_of(run: "RunFactorization", rounds: int | None = None) -> dict[str, float | None]:
    """Return errors of the accumulated sum, per unit of noise multiplier, clip norm and first learning rate, as `ERRORS`.

    They are the root mean square over all rounds of the run; that of the last of `rounds` (None: of all of them); the first of
    independent noise; and the certificate that no mechanism which restarts every epoch, with equal noise in all, goes
    below: None where it would take too long.
    """
    from fedmf.mechanisms import design_run, run_lower_bound

    total = len(run.per_round_error)
    is_certified = run.family == "optimal" or total <= MOST_ROUNDS
    values = (
        run.rms_error,
        float(run.per_round_error[(rounds or total) - 1]),
        design_run("independent", run.workloads).rms_error,
        run_lower_bound(run.workloads) / total**0.5 if is_certified else None,
    )
    return dict(zip(ERRORS, values, strict=True))


def as_document(planned: Planned) -> dict[str, Any]:
    """Return the plan with the keys of the command's contract; what is not known is None."""
    budget, event = planned.budget, planned.event
    spent, is_zero_out = budget.spent(event), budget.adjacency == "zero_out"
    tight = replace(budget, accountant="tight").spent(event).epsilon_tight if is_zero_out else None
    curve = (
        None
        if planned.orders is None
        # An order is written as short as it can be: 2, 1.1, 2.5.
        else {
            repr(order).removesuffix(".0"): divergence({event: 1}, order, budget.adjacency)
            for order in planned.orders
        }
    )
    mean_noise, error = budget.mean_noise(event), planned.errors["rms_error"]
    return {
        "epsilon": spent.epsilon,
        "epsilon_rdp": spent.epsilon_rdp,
        "epsilon_tight": tight,
        "epsilon_tight_is": TIGHT if is_zero_out else None,
        "epsilon_exact": spent.epsilon_exact,
        "noise_multiplier": event.noise_multiplier,
        "effective_noise_multiplier": event.effective_noise_multiplier,
        "linf_over_l2": event.linf_over_l2,
        "geometry": budget.geometry,
        "counted_over_l2": budget.counted_over_l2,
        "delta": spent.delta,
        "floating_point": None if budget.floating_point is None else asdict(budget.floating_point),
        "order": spent.order,
        "adjacency": spent.adjacency,
        "unit_of_privacy": planned.unit,
        "not_covered": list(planned.not_covered),
        "accountant": spent.accountant,
        "rdp": curve,
        "feasible": planned.feasible,
        "warnings": list(planned.warnings),
        "uplink_bytes_per_client": budget.uplink_bytes(event.keep_probability),
        "mean_noise_std": mean_noise,
        **planned.errors,
        "model_noise_std": None if mean_noise is None or error is None else mean_noise * error,
        "noise_over_signal": planned.noise_over_signal,
    }


def _rounds_per_epoch(settings: PlanSettings) -> tuple[int | None, str | None]:
    """Return the rounds of an epoch, as given or as many as fit, and why its cohorts cannot be disjoint, if so."""
    if settings.clients is None or settings.cohort_size is None:
        return settings.rounds_per_epoch, None
    try:
        return rounds_that_fit(settings.clients, settings.cohort_size, settings.rounds_per_epoch), None
    except ParticipationError as error:
        return settings.rounds_per_epoch, str(error)


def _factorization(settings: PlanSettings, rounds: int) -> "RunFactorization | None":
    """Return the mechanism of the run planned; None where its rounds are too many for a plan."""
    # Not before it is needed: the families import scipy, which takes longer than the rest of a plan.
    from experiments.settings.factorization import factorize, find_family
    from fedmf.mechanisms import prefix_sum

    name, total = settings.mechanism.name, rounds * settings.epochs
    if total > MOST_ROUNDS or not find_family(name).suits(prefix_sum(rounds)):
        _log.warning(
            "the error in the model is not computed: %d rounds are too many for %s in a plan", total, name
        )
        return None
    return factorize(
        name, settings.workload, rounds, settings.epochs, beta=settings.momentum, schedule=settings.schedule
    )


def _budget(settings: PlanSettings, is_known: bool) -> Budget:
    """Return what all keep probabilities share; without sparsification linf_over_l2 does not count.

    `is_known`: whether it is given or can be computed. Raises `SettingError` for geometry "linf" without the dimension,
    whose coordinates it counts.
    """
    geometry, dimension = settings.geometry, settings.dimension
    if geometry == "linf" and dimension is None:
        raise SettingError(
            "geometry is linf, which counts every coordinate of a client's vector, and dimension is not given; give it."
        )
    ratio = 1.0
    if is_known or settings.keep_probability < 1 or geometry == "linf":
        ratio = resolve_linf_ratio(
            settings.linf_over_l2, dimension, settings.cohort_size, rotation=settings.rotation
        )
    padded = None if dimension is None else padded_dimension(dimension, settings.rotation)
    counted = counted_radius(geometry, l2_radius=1.0, linf_norm=ratio, coordinates=padded or 1)
    assert counted is not None  # both bounds are there
    return Budget(
        target=settings.epsilon,
        epochs=settings.epochs,
        delta=settings.delta,
        adjacency=settings.adjacency,
        accountant=settings.accountant,
        geometry=geometry,
        linf_over_l2=counted_ratio(geometry, linf_over_l2=ratio, coordinates=padded or 1),
        counted_over_l2=counted,
        cohort_size=settings.cohort_size,
        padded=padded,
    )


def _with_precision(budget: Budget, settings: PlanSettings, run: "RunFactorization | None") -> Budget:
    """Return the budget with what finite precision adds; as it is where dimension, cohort or rounds are not known."""
    # Calibrated without it, and so with no more noise than the plan will have.
    event = budget.event(settings.keep_probability, settings.noise_multiplier)
    dimension, cohort_size = settings.dimension, settings.cohort_size
    if run is None or dimension is None or cohort_size is None or event.noise_multiplier == 0:
        return budget
    price = finite_precision(
        [epoch.precision for epoch in run.epochs],
        dimension=dimension,
        rounds=run.rounds,
        cohort_size=cohort_size,
        noise_multiplier=event.noise_multiplier,
        delta=budget.delta,
    )
    if replace(budget, epochs=1).spent(event).epsilon <= LARGEST:
        rounds = f"{run.rounds * budget.epochs} rounds of {settings.mechanism.name}"
        check_price(price, rounds, dimension)
    return replace(budget, floating_point=price) if price.a <= MOST else budget
