"""Noise of Chen, Isik, Kairouz, No, Oh, Xu (ICML 2024): their Figure 1, and what accountant=tight saves.

Figure 1 is the noise that sparsification costs: the noise multiplier z/gamma of the estimate of the sum at epsilon 5, delta 1e-8
and one epoch. The table of the derivation of accountant=tight has kappa_inf/kappa_2 = 0.0059351, delta = 1e-5, and noise
calibrated by Renyi divergence to 1, 2 and 8. The expected numbers were computed apart from this code over a grid of Renyi
orders, which moves them by up to 0.1 %: ours, with real orders, may be below them.
"""

from pathlib import Path
from typing import Any

import numpy as np

from experiments.pages.figures import COLOURS
from experiments.reproduce import Reproduction, Table
from experiments.reproduce.plots import figure
from fedmf.accounting import EpochEvent, PrivacySpent, calibrate_noise_multiplier, privacy_spent
from fedmf.accounting.calibration import solve_noise_multiplier
from fedmf.checks import counted

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

TIGHT_DELTA, LINF_OVER_L2 = 1e-5, 0.0059351
TARGETS = (1.0, 2.0, 8.0)
EXPECTED_TIGHT = {  # (epochs, gamma): epsilon at the noise of each target
    (1, 1.0): (0.9149, 1.8395, 7.4317),
    (1, 0.1): (0.9154, 1.8411, 7.4641),
    (1, 0.03): (0.9167, 1.8479, 7.6885),
    (1, 0.01): (0.9237, 1.8902, 8.0),
    (1, 0.003): (0.9830, 2.0, 8.0),
    (16, 1.0): (0.9149, 1.8395, 7.4317),
    (16, 0.1): (0.9150, 1.8397, 7.4341),
    (16, 0.03): (0.9151, 1.8401, 7.4484),
    (16, 0.01): (0.9156, 1.8428, 7.5595),
    (16, 0.003): (0.9195, 1.8689, 8.0),
    (16, 0.001): (0.9493, 2.0, 8.0),
}
TIGHT_POINTS = 21


def sgmf_figure1(path: Path, size: str) -> Reproduction:
    """Return the points next to those expected, and draw both panels."""
    points = [
        *(("left", ratio, GAMMA, sparsified(ratio, GAMMA), want) for ratio, want in EXPECTED_LEFT.items()),
        *(("right", RATIO, gamma, sparsified(RATIO, gamma), want) for gamma, want in EXPECTED_RIGHT.items()),
        ("Gaussian, RDP", 1.0, 1.0, gaussian_rdp(), EXPECTED_GAUSSIAN_RDP),
        ("Gaussian, exact", 1.0, 1.0, sparsified(1.0, 1.0), EXPECTED_GAUSSIAN_EXACT),
    ]
    rows = tuple((*point, point[3] / point[4] - 1) for point in points)
    columns = ("panel", "D2/Dinf", "gamma", "ours", "expected", "relative difference")
    draw_figure1(path)
    return (Table("points", columns, rows),), max(abs(row[5]) for row in rows)


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


def draw_figure1(path: Path) -> None:
    """Draw both panels to `path`, a PNG."""
    ratios, gammas = np.geomspace(1, 5000, POINTS), np.geomspace(1e-4, 0.5, POINTS)
    both = (
        (ratios, [sparsified(ratio, GAMMA) for ratio in ratios], EXPECTED_LEFT,
         "Delta_2 / Delta_inf (no unit)", f"keep probability {GAMMA:g}"),
        (gammas, [sparsified(RATIO, gamma) for gamma in gammas], EXPECTED_RIGHT,
         "keep probability gamma", f"Delta_2 / Delta_inf = {RATIO:g}"),
    )  # fmt: skip
    with figure(path, 9.0, 3.6, dots=150) as drawn:
        panels = drawn.subplots(1, 2)
        for axes, (x, y, expected, label, title) in zip(panels, both, strict=True):
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


def tighter_accountant(path: Path, size: str) -> Reproduction:
    """Return the table next to the expected numbers, and draw the epsilon saved."""
    rows = tuple(
        (epochs, gamma, target, spent.epsilon, wanted, spent.epsilon / wanted - 1)
        for (epochs, gamma), expected in EXPECTED_TIGHT.items()
        for target, wanted in zip(TARGETS, expected, strict=True)
        for spent in (at_the_noise_of(target, gamma, epochs),)
    )
    columns = ("epochs", "gamma", "epsilon by RDP", "tight", "expected", "relative difference")
    draw_tight(path)
    proof = "The proof is in docs/theory.md; it is not refereed."
    return (Table("tight", columns, rows, note=proof),), max(abs(row[5]) for row in rows)


def at_the_noise_of(target: float, gamma: float, epochs: int) -> PrivacySpent:
    """Return what is spent with the noise that Renyi divergence needs for `target`, also at gamma = 1."""

    def spent(z: float, accountant: str) -> PrivacySpent:
        return privacy_spent(
            EpochEvent(z, gamma, LINF_OVER_L2), epochs, delta=TIGHT_DELTA, accountant=accountant
        )

    return spent(solve_noise_multiplier(lambda z: spent(z, "rdp").epsilon_rdp, target, start=gamma), "tight")


def draw_tight(path: Path) -> None:
    """Draw the epsilon saved against the keep probability and against kappa_inf/sigma to `path`, a PNG."""
    gammas = np.geomspace(3e-4, 0.5, TIGHT_POINTS).tolist()
    with figure(path, 9.0, 3.6) as drawn:
        left, right = drawn.subplots(1, 2, sharey=True)
        for colour, target in zip(COLOURS, TARGETS, strict=False):
            for epochs, line in ((16, "-"), (1, "--")):
                label = f"epsilon {target:g}, {counted(epochs)}"
                style: Any = {"color": colour, "linestyle": line, "label": label}
                noise = [
                    calibrate_noise_multiplier(
                        epsilon=target,
                        delta=TIGHT_DELTA,
                        keep_probability=gamma,
                        linf_over_l2=LINF_OVER_L2,
                        epochs=epochs,
                    )
                    for gamma in gammas
                ]
                saved = [
                    100 * (1 - at_the_noise_of(target, gamma, epochs).epsilon / target) for gamma in gammas
                ]
                left.semilogx(gammas, saved, **style)
                right.semilogx([LINF_OVER_L2 / z for z in noise], saved, **style)
        left.set(xlabel="keep probability gamma", ylabel="epsilon saved over Renyi, %")
        right.set_xlabel("kappa_inf / sigma")
        right.legend(loc="lower left")
