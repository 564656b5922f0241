"""What is asked of the accountant: a noise multiplier or an epsilon, and the terms in which epsilon is stated."""

from dataclasses import dataclass

from fedmf.checks import check_noise, check_open_unit, check_positive
from fedmf.errors import SettingError
from fedmf.setting import ACCOUNTANTS, ADJACENCIES, GEOMETRIES, REQUIRED, check_fields, setting


@dataclass(frozen=True)
class PrivacyTarget:
    """What is asked of the accountant: delta, and either a noise multiplier (0: not private) or an epsilon.

    `geometry` names the bounds of a client's vector that count: see `EpochEvent`. Raises `SettingError` unless exactly one
    of the two is given, and for values out of range.
    """

    delta: float = setting(
        REQUIRED, "delta of the statement, in (0, 1); at most 1/(10 N)", check=check_open_unit
    )
    noise_multiplier: float | None = setting(
        None,
        "sigma over the sensitivity; 0: not private; give this or epsilon, not both",
        check=check_noise,
    )
    epsilon: float | None = setting(
        None,
        "target epsilon, for which the noise is calibrated; give this or noise_multiplier, not both",
        check=check_positive,
    )
    adjacency: str = setting(
        "zero_out",
        "difference between neighbouring datasets: a client's update is zeroed out, or its data are replaced",
        ADJACENCIES,
    )
    accountant: str = setting(
        "rdp",
        "accountant: Renyi divergence, or this project's own tighter bound (docs/theory.md)",
        ACCOUNTANTS,
    )
    max_epsilon: float | None = setting(
        None,
        "limit on epsilon: the run stops before the epoch that would exceed it; null: no limit",
        check=check_positive,
    )
    geometry: str = setting(
        "l2",
        "clip norms that epsilon follows from: both, or the L-infinity one alone (L_inf-CSGM, a baseline)",
        GEOMETRIES,
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise SettingError(
                f"epsilon is {self.epsilon} and noise_multiplier is {self.noise_multiplier}; "
                "give exactly one of them and set the other to None."
            )
