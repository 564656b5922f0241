"""The noise and the masks of a scene, recovered and tested against their laws.

A run in which clients send zeros shows the noise alone. With masks it is run again with the same secret and clients that
send digits (`fedmf.audit.masks`): the noise cancels, and the difference shows the masks. In scenes whose clients speak it is
run once more with vectors at and over their bounds, and what a twin says that these add is taken away, so that noise is
also seen where a client was clipped.
"""

import numpy as np
import numpy.typing as npt

from experiments.audit.coupled import journal
from experiments.audit.scene import INT8_LINF, L2_NORM, Run, Scene, cohorts, plan_of, stated_of
from experiments.audit.vectors import kind_of, known_sums, rotated, vector
from fedmf.audit import Finding, mask_laws, residuals, unmixed
from fedmf.audit.residual import VARIANCE
from fedmf.errors import FedmfError
from fedmf.mechanisms.arrays import Float64
from fedmf.randomness import SecretKey
from fedmf.updates.vectors import Vector

FALSE_ALARM = (
    1e-7  # of the noise of a scene, and of its masks: all scenes of an audit together stay near 1e-6
)
SCENES = (
    Scene("rotated, clients over their bounds", speaking=True),
    Scene(
        "masks, clients over their bounds", keep_probability=0.3, rotation="identity", linf=64, speaking=True
    ),
    Scene(
        "rotated and padded, masks, resumed", keep_probability=0.3, dimension=255, together=2, resume_after=2
    ),
    Scene("int8, masks", "independent", keep_probability=0.1, value_type="int8", linf=INT8_LINF),
    Scene("int8, padded, silent clients", value_type="int8", dimension=200, silent=True, runs=20),
    Scene("banded, 20 rounds", "banded_toeplitz", dimension=200, cohort_size=2, rounds_per_epoch=20, runs=12),
    Scene(
        "tree, six coordinates",
        "binary_tree",
        1.0,
        "identity",
        dimension=6,
        rounds_per_epoch=4,
        epochs=2,
        runs=80,
    ),
    Scene("rotated, masks, large", keep_probability=0.3, dimension=1 << 17, cohort_size=2, runs=3),
)


def noise_findings(scene: Scene, seed: int, false_alarm: float = FALSE_ALARM) -> list[Finding]:
    """Return the findings of a scene's runs: on the noise, on the masks, and whether the models follow from the releases."""
    zeros, left, masks, seen = np.zeros(scene.dimension, np.float32), [], [], []
    for run in range(scene.runs):
        secret = SecretKey.reproducible(seed).derive("noise", scene.name, run)
        try:
            seen.append(Run(scene, lambda client, number: zeros, secret))
            sums, mask = seen[-1].sums, None
            if scene.keep_probability < 1 and plan_of(scene).rotation.padded == scene.dimension:
                mask = shown_masks(scene, secret, sums)
                if mask is None:
                    where = f"run {run}: with digits and without it differs by no sum of masked vectors"
                    return [Finding("mask decoding", 1.0, 0.0, True, where=where)]
                masks.append(mask)
            if scene.speaking:
                seen.append(Run(scene, lambda *which, run=run: vector(scene, kind_of(run, *which)), secret))
                sums = seen[-1].sums - known_sums(scene, run, mask)
        except FedmfError as error:
            return [Finding(VARIANCE, np.inf, 1.0, True, where=f"a run broke off: {error}")]
        left.append(sums)
    if not np.isfinite(left).all():
        return [Finding(VARIANCE, np.inf, 1.0, True, where="a release that is not finite")]
    found = [
        *residuals(left, stated_of(scene), false_alarm=false_alarm),
        max(map(journal, seen), key=lambda one: one.observed),
    ]
    return found + (list(mask_laws(masks, scene.keep_probability, false_alarm=false_alarm)) if masks else [])


def shown_masks(scene: Scene, secret: SecretKey, silent: Float64) -> npt.NDArray[np.bool_] | None:
    """Return the masks (E, T, n, D) of the run with this secret, whose sums are `silent` (E, T, d) if all send zeros."""
    plan, n = plan_of(scene), scene.cohort_size
    linf = plan.bounds.linf_norm or L2_NORM
    largest = (
        min(L2_NORM / scene.dimension**0.5, linf) / 2
    )  # half: float32 may round a vector up, which is clipped then
    if scene.value_type == "int8":
        largest = linf / 127 * 2 ** (n - 1)  # levels, so that nothing is rounded
    entries = largest * 0.5 ** np.arange(n)
    sent = [
        np.asarray(plan.rotation.unrotate(np.full(scene.dimension, entry)), np.float32) for entry in entries
    ]
    rounds = cohorts(plan).reshape(-1, n)

    def holds(client: int, number: int) -> Vector:
        return sent[int(np.flatnonzero(rounds[number - 1] == client)[0])]

    speaking = Run(scene, holds, secret).sums
    error = np.linalg.norm(2.0**-24 * (np.abs(speaking) + np.abs(silent)), axis=-1).max()
    return unmixed(rotated(plan, speaking - silent), entries, tolerance=float(error + 2.0**-17 * n * largest))
