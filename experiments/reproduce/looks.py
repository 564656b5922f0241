"""How a mechanism looks in the plots of trained models: alike on every page, whatever stands beside it there.

Colour says which mechanism; a variant of one, by its bounds or its epochs, has its colour and another dash and marker.
"""

from dataclasses import dataclass
from typing import Any

from experiments.pages.figures import COLOURS, DASHES, MARKERS


@dataclass(frozen=True)
class Look:
    """Numbers of a colour, a dash and a marker of the palette."""

    colour: int
    dash: int
    marker: int

    @property
    def line(self) -> dict[str, Any]:
        """What a line is drawn with."""
        return {"color": COLOURS[self.colour], "linestyle": DASHES[self.dash]}

    @property
    def points(self) -> dict[str, Any]:
        """What a line with a marker at each point is drawn with."""
        return {**self.line, "marker": MARKERS[self.marker]}


INDEPENDENT, ONLINE, EPOCH, WHOLE_RUN = Look(0, 0, 0), Look(1, 1, 1), Look(2, 2, 2), Look(3, 3, 3)
PREFIX, FULL, LINF = Look(4, 0, 4), Look(5, 1, 5), Look(6, 2, 6)
LOOKS = {
    "independent": INDEPENDENT,
    "independent, L2-CSGM": INDEPENDENT,
    "L2-CSGM, no epochs": Look(0, 3, 5),
    "Linf-CSGM": LINF,
    "Linf-CSGM, narrow": Look(6, 0, 4),
    "honaker_online": ONLINE,
    "honaker_full": FULL,
    "epoch, prefix sums": PREFIX,
    "optimal, prefix sums": PREFIX,
    "epoch, momentum": EPOCH,
    "optimal, momentum": EPOCH,
    "SGMF, epoch": EPOCH,
    "whole run": WHOLE_RUN,
    "optimal, momentum and cooldown": WHOLE_RUN,  # workload=run of one epoch
    "SGMF, whole run": WHOLE_RUN,
    "SGMF, whole run, narrow": Look(3, 0, 1),
}
