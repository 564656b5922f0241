"""The masks of a run, read off the difference of two runs of one secret: all clients silent, and all sending digits.

`fedmf.audit.masks` says what digits are. A rotated sum is turned back first. Where one coordinate was padded, the difference
lacks one number: the sum in sent coordinates is known but for a multiple of one row of the rotation, whose entries are
all of one size. So the multiple follows from one coordinate, up to which of the 2^n sums stands there; one of them only
makes a sum of digits of all others too.
"""

import numpy as np
import scipy.linalg

from experiments.audit.pipeline import Float64, known
from experiments.audit.sabotage import Sabotage
from experiments.audit.scene import Scene, cohorts, plan_of, play, recovered, to_sent
from fedmf.audit.masks import Masks, digits, unmixed
from fedmf.errors import SettingError
from fedmf.plan import Plan
from fedmf.randomness import SecretKey


def shown_masks(
    scene: Scene, secret: SecretKey, silent: Float64, error: Float64, sabotage: Sabotage
) -> Masks | None:
    """Return the masks (E, T, n, D) of a run, None where its difference to the run in which all sent digits shows none.

    `silent` (E, T, d) are the sums of the run in which everybody sent zeros, `error` the bound on the error of each.
    """
    plan = plan_of(scene)
    entries = entries_of(scene)
    vectors = [
        np.asarray(plan.rotation.unrotate(np.full(plan.rotation.padded, entry)), np.float32)
        for entry in entries
    ]
    zeros = np.zeros(plan.dimension, np.float32)
    held = {
        (number + 1, who): vector
        for number, cohort in enumerate(cohorts(plan))
        for who, vector in zip(cohort, vectors, strict=True)
    }
    speaking, other = recovered(
        plan,
        play(scene, secret, lambda who, number: known(held.get((number, who), zeros)), sabotage).models,
    )
    # Of the vectors themselves float32 and the rotation leave less than 2^-18 of the largest entry.
    slack = float(np.linalg.norm(error + other, axis=-1).max()) + 2.0**-18 * len(entries) * float(entries[0])
    slack *= 1 if scene.keeps_all else 2  # that of the coordinate from which the lacking number follows
    if not slack < entries[-1] / 2:
        raise SettingError(f"scene {scene.name} has too much noise to read masks: {slack} of {entries[-1]}.")
    difference = np.apply_along_axis(to_sent(plan), -1, speaking - silent)
    if scene.keeps_all:
        return unmixed(difference, entries, tolerance=slack)
    rows = [_completed(plan, row, entries, slack) for row in difference.reshape(-1, plan.rotation.padded)]
    shape = (*difference.shape[:2], len(entries), plan.rotation.padded)
    found = [row for row in rows if row is not None]
    return np.array(found).reshape(shape) if len(found) == len(rows) else None


def entries_of(scene: Scene) -> Float64:
    """Return the entry of each client's digits, (n,); with int8 values levels, so that nothing is rounded."""
    plan = plan_of(scene)
    n, size = plan.participation.cohort_size, plan.rotation.padded
    assert plan.bounds.l2_norm is not None
    assert plan.bounds.linf_norm is not None
    # Half of both bounds: float32 may round a vector up, and what is clipped is no digit any more.
    l2_norm, linf_norm = plan.bounds.l2_norm / 2, plan.bounds.linf_norm / 2
    if scene.value_type != "int8":
        return digits(n, l2_norm=l2_norm, linf_norm=linf_norm, dimension=size)
    entries = plan.bounds.linf_norm / 127 * 2.0 ** np.arange(n)[::-1]
    if entries[0] > min(linf_norm, l2_norm / size**0.5) or np.any(np.float32(entries) != entries):
        raise SettingError(f"scene {scene.name} has int8 levels that are no digits: {entries.tolist()}.")
    return np.asarray(entries)


def _completed(plan: Plan, row: Float64, entries: Float64, slack: float) -> Masks | None:
    """Return the masks (n, D) of a row (D,) of which the last of d + 1 = D numbers was cut off, None where there are none."""
    size = plan.rotation.padded
    if size != plan.dimension + 1:
        raise SettingError(
            f"{size - plan.dimension} coordinates are padded; masks are read where one is, or none."
        )
    lacking = scipy.linalg.hadamard(size)[-1]  # what the number adds to each coordinate, up to its size
    sums = (row + lacking * lacking[0] * (units * entries[-1] - row[0]) for units in range(2 ** len(entries)))
    found = [masks for each in sums if (masks := unmixed(each, entries, tolerance=slack)) is not None]
    return found[0] if len(found) == 1 else None
