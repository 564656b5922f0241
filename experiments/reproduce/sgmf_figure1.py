"""Figure 1 of Chen, Isik, Kairouz, No, Oh, Xu (ICML 2024): the noise that sparsification costs.

At epsilon = 5, delta = 1e-8 and one epoch: the noise multiplier z/gamma of the estimate of the sum after
dividing by gamma, against Delta_2/Delta_inf at gamma = .01 (left) and against gamma at Delta_2/Delta_inf =
1000 (right), with the Gaussian mechanism (gamma = 1) beside it. The points expected were computed apart
from this code, with a discrete grid of Renyi orders, so that ours, with continuous orders, may lie below
them by up to .1 %.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.pages.figures import COLOURS, STYLE, save
from experiments.reproduce import Reproduction
from fedmf.accounting import EpochEvent, calibrate_noise_multiplier, privacy_spent
from fedmf.accounting.calibration import solve_noise_multiplier

EPSILON = 5.0
DELTA = 1e-8
GAMMA_LEFT = 0.01
RATIO_RIGHT = 1000.0
POINTS = 49  # of a curve

# Delta_2/Delta_inf -> noise multiplier at gamma = .01.
EXPECTED_LEFT = {
    1.0: 59.97847273566135,
    3.0: 21.558897999466055,
    10.0: 7.070244515988475,
    30.0: 2.723550817367839,
    100.0: 1.3987396586351584,
    300.0: 1.2205717506811666,
    1000.0: 1.1974786891659752,
    5000.0: 1.1952443793500375,
}
# gamma -> noise multiplier at Delta_2/Delta_inf = 1000.
EXPECTED_RIGHT = {
    0.0001: 5.535573408589887,
    0.001: 1.3753873555609661,
    0.01: 1.1974786891659752,
    0.1: 1.1951935605942148,
    0.5: 1.1951540680798207,
}
EXPECTED_GAUSSIAN_RDP = 1.1951510140778516
EXPECTED_GAUSSIAN_EXACT = 1.1390127816044067
ABOUT = f"""
**What is computed.** The noise multiplier z that one epoch needs for epsilon = {EPSILON:g} at delta = {DELTA:g}, one
client, zero-out adjacency, divided by the keep probability gamma: the noise of the estimate after it has been scaled back.
Left against Delta_2/Delta_inf at gamma = {GAMMA_LEFT:g}, right against gamma at Delta_2/Delta_inf = {RATIO_RIGHT:g}. Nothing in
it is drawn at random: there are no seeds.

**What the paper shows.** Figure 1 of Chen et al. draws these two curves above the Gaussian mechanism and has them fall to it:
left as the bound of one coordinate gets small beside the vector's, right as more is kept. It prints no numbers; those in the
column `expected` were computed apart from this code, over a grid of Renyi orders, for the corrected theorem.

**What differs.** The curve is that of the theorem as corrected in docs/errata.md (the sum from l = 2, floor and remainder, a
factor 1/2 in the Gaussian's). Ours minimises over real orders, and may lie below a grid's by up to .1 %. Beside the paper's line for the
Gaussian, by Renyi divergence, stands what the Gaussian exactly needs: that much of the gap is the accounting, not sparsification.

**The whole-run mechanism** has the same noise multiplier as any other: it is relative to the largest column norm of the
strategy matrix, and privacy depends on nothing else of it. What a factorization gains is error at this multiplier.
"""


def reproduce(directory: Path) -> Reproduction:
    """Return the points beside those expected, and draw both panels to directory/sgmf_figure1.png."""
    points = (
        *(("left", ratio, GAMMA_LEFT, want) for ratio, want in EXPECTED_LEFT.items()),
        *(("right", RATIO_RIGHT, gamma, want) for gamma, want in EXPECTED_RIGHT.items()),
    )
    rows = [
        (panel, ratio, gamma, sparsified(ratio, gamma), expected) for panel, ratio, gamma, expected in points
    ]
    rows.append(("Gaussian, RDP", 1.0, 1.0, gaussian_rdp(), EXPECTED_GAUSSIAN_RDP))
    rows.append(("Gaussian, exact", 1.0, 1.0, sparsified(1.0, 1.0), EXPECTED_GAUSSIAN_EXACT))
    table = tuple((*row, row[3] / row[4] - 1) for row in rows)
    return Reproduction(
        title=f"Chen et al. 2024, Figure 1: noise multiplier z/gamma at epsilon={EPSILON:g}, delta={DELTA:g}, one epoch, one client, zero-out adjacency",
        columns=("panel", "D2/Dinf", "gamma", "ours", "expected", "relative difference"),
        rows=table,
        worst_relative_error=max(abs(row[5]) for row in table),
        notes=(
            "All numbers are for the corrected theorem of docs/privacy.md; its section 7 says what epsilon does not cover.",
        ),
        figures=(draw(directory / "sgmf_figure1.png"),),
        stem="sgmf_figure1",
        about=ABOUT,
        heading="Points of both panels",
    )


def sparsified(ratio: float, gamma: float) -> float:
    """Return z/gamma at Delta_2/Delta_inf = `ratio`; at gamma = 1 the exact Gaussian number."""
    z = calibrate_noise_multiplier(
        epsilon=EPSILON, delta=DELTA, keep_probability=gamma, linf_over_l2=1 / ratio, epochs=1
    )
    return z / gamma


def gaussian_rdp() -> float:
    """Return the noise multiplier of the Gaussian mechanism by Renyi divergence, as the paper accounts it."""
    return solve_noise_multiplier(
        lambda z: privacy_spent(EpochEvent(z, 1.0, 1.0), 1, delta=DELTA).epsilon_rdp, EPSILON
    )


def draw(path: Path) -> Path:
    """Draw both panels to `path`, a PNG."""
    style: Any = STYLE
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(9.0, 3.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        ratios = np.geomspace(1, 5000, POINTS)
        _panel(left, ratios, [sparsified(ratio, GAMMA_LEFT) for ratio in ratios], EXPECTED_LEFT)
        left.set_xlabel("Delta_2 / Delta_inf (no unit)")
        left.set_title(f"keep probability {GAMMA_LEFT:g}")
        gammas = np.geomspace(1e-4, 0.5, POINTS)
        _panel(right, gammas, [sparsified(RATIO_RIGHT, gamma) for gamma in gammas], EXPECTED_RIGHT)
        right.set_xlabel("keep probability gamma")
        right.set_title(f"Delta_2 / Delta_inf = {RATIO_RIGHT:g}")
        save(figure, path, 150)
    return path


def _panel(
    axes: Axes, x: Sequence[float] | np.ndarray, y: Sequence[float], expected: dict[float, float]
) -> None:
    axes.loglog(x, y, color=COLOURS[0], label="sparsified, ours")
    axes.loglog(list(expected), list(expected.values()), "o", color=COLOURS[1], label="sparsified, expected")
    axes.axhline(gaussian_rdp(), color=COLOURS[2], linestyle="--", label="Gaussian, RDP")
    axes.axhline(sparsified(1.0, 1.0), color=COLOURS[3], linestyle=":", label="Gaussian, exact")
    axes.set_ylabel("noise multiplier z / gamma")
    top = max(y)
    axes.set_ylim(0.9, 1.5 * top if math.isfinite(top) else None)
    ticks = [tick for tick in (1, 2, 5, 10, 20, 50, 100) if tick < 1.5 * top]
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.legend()
