"""The settings of a plan, what all its keep probabilities have in common, and the plan itself."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from experiments.settings.mechanism import MechanismSettings, WorkloadName
from experiments.settings.output import PRINTED, Output
from fedmf.accounting import (
    EpochEvent,
    FloatingPoint,
    PrivacySpent,
    calibrate_noise_multiplier,
    check_accountant,
    counted_radius,
    counted_ratio,
    mean_noise_std,
    privacy_spent,
    resolve_linf_ratio,
)
from fedmf.checks import (
    check_at_least,
    check_below_one,
    check_choice,
    check_keep_probability,
    check_open_unit,
    check_positive,
)
from fedmf.choices import ACCOUNTANTS, ADJACENCIES, GEOMETRIES, ROTATIONS, SCHEDULES
from fedmf.errors import SettingError
from fedmf.setting import REQUIRED, setting
from fedmf.updates.rotation import padded_dimension
from fedmf.updates.wire import value_bytes

if TYPE_CHECKING:
    from experiments.plan.figures import ModelNoise

UNIT = "one client"
KEEP_PROBABILITIES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)


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
    """What every row of the table has in common.

    `linf_over_l2` is relative to the L2 radius that epsilon is counted with, `counted_over_l2` that radius over Delta_2:
    1, but with geometry "linf". `floating_point` is what finite precision adds, None where too little is known to say.
    """

    linf_over_l2: float
    epochs: int
    delta: float
    adjacency: str
    accountant: str
    geometry: str = "l2"
    counted_over_l2: float = 1.0
    floating_point: FloatingPoint | None = None

    @property
    def precision(self) -> float:
        """The `a` of `floating_point`, as far as it is known."""
        return 0.0 if self.floating_point is None else self.floating_point.a

    def event(self, noise_multiplier: float, keep_probability: float) -> EpochEvent:
        """Return one epoch with this noise and keep probability."""
        return EpochEvent(noise_multiplier, keep_probability, self.linf_over_l2)

    def spent(self, event: EpochEvent) -> PrivacySpent:
        """Return what all epochs cost."""
        return privacy_spent(
            event,
            self.epochs,
            delta=self.delta,
            adjacency=self.adjacency,
            accountant=self.accountant,
            precision=self.precision,
        )

    def epsilon_tight(self, event: EpochEvent) -> float | None:
        """Return what all epochs cost by accountant=tight, whichever was chosen; None where it is not proved."""
        if self.adjacency != "zero_out":
            return None
        return replace(self, accountant="tight").spent(event).epsilon_tight

    def noise_multiplier(self, epsilon: float, keep_probability: float) -> float:
        """Return the noise multiplier that `epsilon` needs."""
        return calibrate_noise_multiplier(
            epsilon=epsilon,
            delta=self.delta,
            keep_probability=keep_probability,
            linf_over_l2=self.linf_over_l2,
            epochs=self.epochs,
            adjacency=self.adjacency,
            accountant=self.accountant,
            precision=self.precision,
        )


def make_budget(settings: PlanSettings) -> Budget:
    """Return the settings that all keep probabilities share; without sparsification linf_over_l2 does not count.

    Raises `SettingError` for geometry "linf" without the dimension, whose coordinates it counts.
    """
    if settings.geometry == "linf" and settings.dimension is None:
        raise SettingError(
            "geometry is linf, which counts every coordinate of a client's vector, and dimension is not given; give it."
        )
    if settings.keep_probability == 1 and linf_unknown(settings) and settings.geometry == "l2":
        ratio = 1.0
    else:
        ratio = resolve_linf_ratio(
            settings.linf_over_l2, settings.dimension, settings.cohort_size, rotation=settings.rotation
        )
    common = (settings.epochs, settings.delta, settings.adjacency, settings.accountant)
    if settings.geometry == "l2":
        return Budget(ratio, *common)
    assert settings.dimension is not None
    coordinates = padded_dimension(settings.dimension, settings.rotation)
    counted = counted_radius(settings.geometry, l2_radius=1.0, linf_norm=ratio, coordinates=coordinates)
    assert counted is not None  # a ratio is an L-infinity bound
    ratio = counted_ratio(settings.geometry, linf_over_l2=ratio, coordinates=coordinates)
    return Budget(ratio, *common, settings.geometry, counted)


def linf_unknown(settings: PlanSettings) -> bool:
    """Return whether linf_over_l2 is neither given nor computable."""
    incomplete = settings.dimension is None or settings.cohort_size is None
    return settings.linf_over_l2 is None and settings.rotation == "hadamard" and incomplete


@dataclass(frozen=True)
class Planned:
    """A plan, from figures or from a run's own settings; None is what is not known.

    `target` is the epsilon that the noise was calibrated to; `padded` are the coordinates that a client's mask chooses
    from; `not_covered` what no epsilon of it covers; `comparable`: whether other keep probabilities can be costed;
    `warnings` is what speaks against it.
    """

    budget: Budget
    event: EpochEvent
    target: float | None
    mechanism: str
    workload: str
    cohort_size: int | None
    padded: int | None
    value_type: str
    noise: "ModelNoise | None"
    noise_over_signal: float | None
    unit: str
    not_covered: tuple[str, ...]
    orders: tuple[float, ...] | None
    feasible: bool
    comparable: bool
    warnings: tuple[str, ...]

    def uplink_bytes(self, keep_probability: float) -> float | None:
        """Return the expected bytes of values a client sends in a round; None without a dimension."""
        return None if self.padded is None else value_bytes(self.padded, keep_probability, self.value_type)

    def mean_noise(self, event: EpochEvent) -> float | None:
        """Return the noise per coordinate of the mean at Delta_2 = 1; None without a cohort size."""
        if self.cohort_size is None:
            return None
        return self.budget.counted_over_l2 * mean_noise_std(
            event.noise_multiplier, keep_probability=event.keep_probability, cohort_size=self.cohort_size
        )
