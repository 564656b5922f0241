"""Clients that send vectors at and far over their bounds, and what an independent twin says that reaches the sum.

Beside clients that send zeros a fault does not show that leaves the noise away where somebody was clipped, or scales it by
what was sent. The twin works in float64, a line of its own for each bound, and rotates by a dense matrix of scipy's:
what the product made of the vectors is held against it, because what the two differ by stays in the noise.
"""

import numpy as np

from client.data import Examples
from experiments.audit.crossing import CANARIES, canary_vector
from experiments.audit.pipeline import Float64, known
from experiments.audit.sabotage import ExamplesOf
from experiments.audit.scene import Scene, cohorts, plan_of, to_sent
from fedmf.audit.masks import Masks
from fedmf.updates.vectors import Vector

SHORT = "within the bounds"
KINDS = (*CANARIES, SHORT)
# docs/privacy.md, section 5: clients clip to that much less than the bound, relative, so that rounding cannot exceed it.
CLIPPED_SHORT = 2.0**-14
# Of a sum of n vectors of norm 1: what float32 makes of a client's vector, of its rotation and of its clip.
TWIN_ERROR = 2.0**-18


def kind_of(run: int, client: int, number: int) -> str:
    """Return what a client sends in a round (1-based) of a run: all kinds in turn, so that none has its own place."""
    return KINDS[(run + client + number) % len(KINDS)]


def vectors_of(scene: Scene) -> dict[str, Vector]:
    """Return the vector (d,) of each kind."""
    plan = plan_of(scene)
    vectors = {kind: canary_vector(scene, plan, kind) for kind in CANARIES}
    return vectors | {SHORT: np.asarray(vectors["at both bounds"] / 2, np.float32)}


def holdings(scene: Scene, run: int) -> ExamplesOf:
    """Return what every client holds in a run."""
    vectors = vectors_of(scene)

    def examples_of(client: int, number: int) -> Examples:
        return known(vectors[kind_of(run, client, number)])

    return examples_of


def known_sums(scene: Scene, run: int, masks: Masks | None = None) -> Float64:
    """Return what the clients of a run add to its releases, (E, T, d) float64, by the twin.

    `masks` (E, T, n, D) are those of the run; None: nothing is masked.
    """
    plan = plan_of(scene)
    who, turn = plan.participation, _matrix(scene)
    bounded = {
        kind: _bounded(scene, turn, vector.astype(np.float64)) for kind, vector in vectors_of(scene).items()
    }
    sent = np.array(
        [
            [bounded[kind_of(run, client, number + 1)] for client in cohort]
            for number, cohort in enumerate(cohorts(plan))
        ]
    ).reshape(who.epochs, who.rounds_per_epoch, who.cohort_size, -1)
    total = (sent if masks is None else sent * masks).sum(axis=2)
    return np.asarray(total @ turn, np.float64)  # turned back: `turn` is orthogonal


def _bounded(scene: Scene, turn: Float64, vector: Float64) -> Float64:
    """Return what a client may send of a vector (d,): zero if it is not finite, within both bounds if it is."""
    bounds = plan_of(scene).bounds
    assert bounds.l2_norm is not None
    assert bounds.linf_norm is not None
    if not np.all(np.isfinite(vector)):
        return np.zeros_like(vector)
    shortened = min(1.0, bounds.l2_norm * (1 - CLIPPED_SHORT) / np.sqrt((vector**2).sum()))
    sent = shortened * (turn @ vector)
    return np.asarray(np.sign(sent) * np.minimum(np.abs(sent), bounds.linf_norm))


def _matrix(scene: Scene) -> Float64:
    """Return the dense matrix of the rotation, (d, d); all coordinates are kept."""
    return np.apply_along_axis(to_sent(plan_of(scene)), 0, np.eye(scene.dimension))
