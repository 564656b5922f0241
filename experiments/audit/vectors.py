"""What the clients of a scene hold, and what an independent twin says that they may add to a sum."""

import numpy as np
import numpy.typing as npt
import scipy.linalg

from experiments.audit.scene import L2_NORM, Scene, cohorts, plan_of
from fedmf.mechanisms.arrays import Float64
from fedmf.plan import Plan
from fedmf.randomness import PublicSeed
from fedmf.updates.vectors import Vector

FAR = 10.0  # times the bound
OVER, OVER_L2, OVER_LINF, AT, NOT_FINITE, WITHIN = KINDS = (
    "over both bounds",
    "over the L2 bound",
    "over the L-infinity bound",
    "at both bounds",
    "not finite",
    "within the bounds",
)
# Clients clip to this much less than the bound, so that rounding cannot exceed it (docs/privacy.md, section 5).
CLIPPED_SHORT = 2.0**-14


def vector(scene: Scene, kind: str, epoch: int = 0) -> Vector:
    """Return a vector (d,) float32 of a kind, made in sent coordinates where the rotation pads none.

    Each epoch has its own public signs, so that what the server keeps of one does not cancel what is sent in the next.
    """
    plan, size = plan_of(scene), scene.dimension
    linf = plan.bounds.linf_norm or L2_NORM
    filled = min(size, max(1, round((L2_NORM / linf) ** 2)))
    entry = min(linf, L2_NORM / filled**0.5)
    if kind in (OVER, OVER_L2):
        filled, entry = size, FAR * max(linf if kind == OVER else 0.0, L2_NORM / size**0.5)
    elif kind == OVER_LINF:
        filled, entry = max(1, int((L2_NORM / (FAR * linf)) ** 2)), FAR * linf
    sent = np.zeros(size)
    sent[(np.arange(filled) + epoch * filled) % size] = entry / (2 if kind == WITHIN else 1)
    found = sent * PublicSeed(0).signs(size, f"audit vectors {scene.name} {epoch}")
    found = plan.rotation.unrotate(found) if plan.rotation.padded == size else found
    if kind == NOT_FINITE:
        found[[0, -1]] = np.nan, np.inf
    return np.asarray(found, np.float32)


def rotated(plan: Plan, rows: Float64) -> Float64:
    """Return rows (.., d) in sent coordinates (.., D), float64, by a Hadamard transform that is not the product's."""
    rotation = plan.rotation
    if rotation.kind == "identity":
        return rows
    size, shape = rotation.padded, rows.shape[:-1]
    wide = np.zeros((*shape, size))
    wide[..., : plan.dimension] = rows * rotation.signs[: plan.dimension]
    block = scipy.linalg.hadamard(min(size, 256))
    outer = scipy.linalg.hadamard(
        size // len(block)
    )  # H of a product of sizes is the Kronecker product of theirs
    turned = outer @ wide.reshape(*shape, len(outer), len(block)) @ block
    return np.asarray(turned.reshape(*shape, size) / size**0.5)


def kind_of(run: int, client: int, number: int) -> str:
    """Return what a client sends in a round (from 1) of a run that looks at the noise: all kinds in turn."""
    return KINDS[(run + client + number) % len(KINDS)]


def known_sums(scene: Scene, run: int, masks: npt.NDArray[np.bool_] | None) -> Float64:
    """Return what the clients of such a run add to its releases, (E, T, d), where no coordinate is padded.

    In float64, with a line of its own for each bound: what the product made of the vectors is tested against it. `masks`
    are (E, T, n, D), None without.
    """
    plan, total = plan_of(scene), np.zeros((scene.epochs, scene.rounds_per_epoch, scene.dimension))
    for (epoch, step, place), client in np.ndenumerate(cohorts(plan)):
        kind = kind_of(run, int(client), epoch * scene.rounds_per_epoch + step + 1)
        given = vector(scene, kind).astype(np.float64)
        if np.isfinite(given).all():
            shortened = min(1.0, L2_NORM * (1 - CLIPPED_SHORT) / float(np.linalg.norm(given)))
            sent = np.clip(
                shortened * rotated(plan, given), -(plan.bounds.linf_norm or np.inf), plan.bounds.linf_norm
            )
            total[epoch, step] += sent if masks is None else sent * masks[epoch, step, place]
    signs = plan.rotation.signs if plan.rotation.kind != "identity" else 1.0
    return rotated(plan, total * signs) * signs  # its own inverse
