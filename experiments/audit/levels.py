"""The level that decides: how probably all rows of an audit together refute an honest pipeline.

    attacks                      1 - confidence for all of them together (Bonferroni): half of it in equal shares for the rows
                                 "one run", half in equal shares for all others, all of it where there is one sort only. Each
                                 prints its own bound at `confidence` by itself too, from which alone nothing follows
    residual, mask, exact rows   1e-6 for all of them together: an equal share for the noise of each scene, for its masks, and
                                 for each exact epsilon
    coupled rows                 0: they are arithmetic

"One run" has the larger share because its bound pays for delta times the number of canaries first: with 16384 of them and
delta = 1e-5 not even guesses that are all right refute an epsilon of 2 at a level below about 0.004. The shares hang on
the pipelines as shipped alone, so that a sabotage is caught at the level that decides, or not at all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from fedmf.audit.residual import FALSE_ALARM


@dataclass(frozen=True)
class Bounds:
    """One bound on counts: `by_itself`, which is printed and chooses the rule, and as it `decides`."""

    by_itself: Callable[..., float]
    decides: Callable[..., float]


@dataclass(frozen=True)
class Levels:
    """The shares of an audit of `one_runs` rows "one run", `attacks` other attacks, and `parts` that chance may refute.

    `confidence` is that of each attack's own bound by itself, and of all of them together.

    >>> [round(share, 5) for share in (Levels(0.95).attack, Levels(0.95, attacks=50, one_runs=2).attack)]
    [0.05, 0.0005]
    """

    confidence: float
    attacks: int = 1
    one_runs: int = 0
    parts: int = 1

    @property
    def attack(self) -> float:
        """The probability with which an attack other than "one run" may refute an honest pipeline."""
        return (1 - self.confidence) * (0.5 if self.one_runs else 1.0) / max(1, self.attacks)

    @property
    def one_run(self) -> float:
        """The probability with which a row "one run" may refute an honest pipeline."""
        return (1 - self.confidence) * (0.5 if self.attacks else 1.0) / max(1, self.one_runs)

    @property
    def part(self) -> float:
        """The false alarm of one scene's noise, of its masks, or of one exact epsilon."""
        return FALSE_ALARM / max(1, self.parts)

    def bounds(self, bound: Callable[..., float], share: float) -> Bounds:
        """Return a bound that takes a `confidence` at that of each attack by itself, and at that of its share."""
        return Bounds(partial(bound, confidence=self.confidence), partial(bound, confidence=1 - share))


def percent(confidence: float) -> str:
    """Return a confidence in words.

    >>> percent(0.999)
    '99.9 %'
    """
    return f"{100 * confidence:.6g} %"
