"""The level that decides: how probably all rows of an audit together refute an honest pipeline.

    attacks                      1 - confidence for all of them together, an equal share for each (Bonferroni); beside that each
                                 row prints its own bound at `confidence` by itself, and nothing follows from that alone
    residual, mask, exact rows   1e-6 for all of them together: an equal share for the noise of each scene, for its masks, and
                                 for each exact epsilon
    coupled rows                 0: they are arithmetic

The shares hang on the pipelines as shipped alone, so that a sabotage is caught at the level that decides, or not at all.
"""

from dataclasses import dataclass

from fedmf.audit.residual import FALSE_ALARM


@dataclass(frozen=True)
class Levels:
    """The shares of an audit of `attacks` attack rows and `parts` others that are left to chance.

    `confidence` is that of each attack's own bound by itself, and of all of them together. One attack by itself:

    >>> Levels(0.95).deciding
    0.95
    """

    confidence: float
    attacks: int = 1
    parts: int = 1

    @property
    def attack(self) -> float:
        """The probability with which one attack may refute an honest pipeline."""
        return (1 - self.confidence) / max(1, self.attacks)

    @property
    def deciding(self) -> float:
        """The confidence at which a bound decides: that of one attack's share."""
        return self.confidence if self.attacks <= 1 else 1 - self.attack

    @property
    def part(self) -> float:
        """The false alarm of one scene's noise, of its masks, or of one exact epsilon."""
        return FALSE_ALARM / max(1, self.parts)


def percent(confidence: float) -> str:
    """Return a confidence in words.

    >>> percent(0.999)
    '99.9 %'
    """
    return f"{100 * confidence:.6g} %"
