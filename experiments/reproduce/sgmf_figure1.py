"""Figure 1 of Chen, Isik, Kairouz, No, Oh, Xu (ICML 2024): the noise that sparsification costs.

The noise multiplier z/gamma of the estimate of the sum at epsilon 5, delta 1e-8 and one epoch. The expected points were
computed apart from this code, over a grid of Renyi orders: ours, with real orders, may be below them by up to 0.1 %.
"""

from pathlib import Path

import numpy as np

from experiments.pages.figures import COLOURS
from experiments.reproduce import Reproduction, Table
from experiments.reproduce.drawing import figure
from fedmf.accounting import EpochEvent, calibrate_noise_multiplier, privacy_spent
from fedmf.accounting.calibration import solve_noise_multiplier

EPSILON, DELTA = 5.0, 1e-8
GAMMA, RATIO = 0.01, 1000.0  # of the left and of the right panel
POINTS = 49  # of a curve
EXPECTED_LEFT = {  # Delta_2/Delta_inf: noise multiplier
    1.0: 59.97847273566135,
    3.0: 21.558897999466055,
    10.0: 7.070244515988475,
    30.0: 2.723550817367839,
    100.0: 1.3987396586351584,
    300.0: 1.2205717506811666,
    1000.0: 1.1974786891659752,
    5000.0: 1.1952443793500375,
}
EXPECTED_RIGHT = {  # gamma: noise multiplier
    0.0001: 5.535573408589887,
    0.001: 1.3753873555609661,
    0.01: 1.1974786891659752,
    0.1: 1.1951935605942148,
    0.5: 1.1951540680798207,
}
EXPECTED_GAUSSIAN_RDP, EXPECTED_GAUSSIAN_EXACT = 1.1951510140778516, 1.1390127816044067


def reproduce(directory: Path, size: str) -> Reproduction:
    """Return the points next to those expected, and draw both panels."""
    points = [
        *(("left", ratio, GAMMA, sparsified(ratio, GAMMA), want) for ratio, want in EXPECTED_LEFT.items()),
        *(("right", RATIO, gamma, sparsified(RATIO, gamma), want) for gamma, want in EXPECTED_RIGHT.items()),
        ("Gaussian, RDP", 1.0, 1.0, gaussian_rdp(), EXPECTED_GAUSSIAN_RDP),
        ("Gaussian, exact", 1.0, 1.0, sparsified(1.0, 1.0), EXPECTED_GAUSSIAN_EXACT),
    ]
    rows = tuple((*point, point[3] / point[4] - 1) for point in points)
    columns = ("panel", "D2/Dinf", "gamma", "ours", "expected", "relative difference")
    return Reproduction(
        (Table("points", columns, rows),),
        max(abs(row[5]) for row in rows),
        figures=(draw(directory / "sgmf_figure1.png"),),
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
    ratios, gammas = np.geomspace(1, 5000, POINTS), np.geomspace(1e-4, 0.5, POINTS)
    curves = (
        (ratios, [sparsified(ratio, GAMMA) for ratio in ratios], EXPECTED_LEFT),
        (gammas, [sparsified(RATIO, gamma) for gamma in gammas], EXPECTED_RIGHT),
    )
    labels = (
        ("Delta_2 / Delta_inf (no unit)", f"keep probability {GAMMA:g}"),
        ("keep probability gamma", f"Delta_2 / Delta_inf = {RATIO:g}"),
    )
    with figure(path, 9.0, 3.6, dots=150) as drawn:
        panels = drawn.subplots(1, 2)
        for axes, (x, y, expected), (label, title) in zip(panels, curves, labels, strict=True):
            axes.loglog(x, y, color=COLOURS[0], label="sparsified, ours")
            axes.loglog(
                list(expected), list(expected.values()), "o", color=COLOURS[1], label="sparsified, expected"
            )
            axes.axhline(gaussian_rdp(), color=COLOURS[2], linestyle="--", label="Gaussian, RDP")
            axes.axhline(sparsified(1.0, 1.0), color=COLOURS[3], linestyle=":", label="Gaussian, exact")
            ticks = [tick for tick in (1, 2, 5, 10, 20, 50, 100) if tick < 1.5 * max(y)]
            axes.set(xlabel=label, title=title, ylabel="noise multiplier z / gamma", ylim=(0.9, 1.5 * max(y)))
            axes.set_yticks(ticks, [str(tick) for tick in ticks])
            axes.minorticks_off()
            axes.legend()
    return path
