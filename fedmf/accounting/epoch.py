"""The event that costs privacy: one epoch of the sparsified Gaussian matrix mechanism, released whole.

What happened is data, what it costs is computed from it (`renyi`, `gaussian`, `spent`).

    >>> EpochEvent(noise_multiplier=0.05, keep_probability=0.01, linf_over_l2=0.01).ratio
    10000.0
"""

import math
from dataclasses import astuple, dataclass, replace

from fedmf.checks import check_non_negative, check_share

ROUNDING = 1e-9  # relative; by how much results of one formula may differ between versions and machines


@dataclass(frozen=True)
class EpochEvent:
    """All noisy sums of one epoch in which each client takes part once (Chen et al. 2024, Thm. 5.1).

    A client sends s * g with ||g||_2 <= Delta_2, ||g||_inf <= Delta_inf and a fresh secret mask s ~
    Bernoulli(gamma)^D; the server releases A SUM + B Z with A = B C and Z_jk iid N(0, sigma^2). With c the
    largest column norm of C,

        kappa_2 = c Delta_2,   kappa_inf = min(c Delta_inf, kappa_2).

    Everything is relative to kappa_2, so no factorization and no clip norm is needed here.

    noise_multiplier: z = sigma / kappa_2, noise on the SUM of masked vectors; 0 is allowed and is not
    private. keep_probability: gamma in (0, 1]; 1 is the plain Gaussian matrix mechanism. linf_over_l2:
    kappa_inf / kappa_2 in (0, 1] for the radii that the clients actually enforce.

    L_inf-CSGM (Chen, Song, Ozgur, Kairouz, "Privacy amplification via compression", NeurIPS 2023) counts the
    L-infinity bound alone: each of the D coordinates is a subsampled Gaussian of sensitivity kappa_inf, and all
    compose, eps(a) = D f_a(kappa_inf^2/sigma^2) with f_a as in `renyi`. That is the event of the L2 radius that D
    coordinates at the bound have, kappa_2 = sqrt(D) kappa_inf: linf_over_l2 = 1/sqrt(D), K = D. Adjacency, participation
    and masks are those of the theorem (docs/theory.md, section 2).

    count_noise: z_s, where the epoch also releases, once, how many of its clients have something (each adds 0 or 1), plus
    noise N(0, z_s^2): `fedmf.clip_norm`. None without such a count. The sensitivity is 1 under zero-out and under replacement.

    Raises `SettingError` for a value outside its range.
    """

    noise_multiplier: float
    keep_probability: float
    linf_over_l2: float
    count_noise: float | None = None

    def __post_init__(self) -> None:
        check_non_negative("noise_multiplier", self.noise_multiplier)
        check_share("keep_probability", self.keep_probability)
        check_share("linf_over_l2", self.linf_over_l2)
        check_non_negative("count_noise", self.count_noise or 0.0)

    @property
    def ratio(self) -> float:
        """K = (kappa_2 / kappa_inf)^2, a real number of at least 1."""
        return 1.0 / self.linf_over_l2**2

    @property
    def without_count(self) -> "EpochEvent":
        """The noisy sums alone."""
        return replace(self, count_noise=None)

    def agrees_with(self, other: "EpochEvent") -> bool:
        """Return whether the two are the same but for rounding."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return all(
            (mine is None) == (theirs is None) and math.isclose(mine or 0.0, theirs or 0.0, rel_tol=ROUNDING)
            for mine, theirs in pairs
        )

    @property
    def effective_noise_multiplier(self) -> float:
        """z / gamma: the noise on the mean, which is what compares across keep probabilities."""
        return self.noise_multiplier / self.keep_probability
