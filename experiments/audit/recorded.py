"""The audit of a run that was made already, from its directory: `run.keep_releases=true run.reproducible=true`.

A private run erases its secrets, and then only the first of these can be asked. In a reproducible one the seed names them:
its noise can be drawn again, and what is left of each release is the sum of what its clients sent.

    recorded model    the releases lead from the first model to model.npz, bit for bit
    recorded sums     what is left is within n Delta_2, and in each sent coordinate within Delta_inf for each client whose
                      mask kept it, so exactly 0 where no mask did
    recorded noise    what is left of a round, S, does not depend on the fresh row z of that round, so that <S, z>/||S|| is
                      N(0, 1). Noise that was added in another scale leaves some of z in S
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from client.parameters import model_arrays
from experiments.audit.scene import cohorts, replayed
from experiments.audit.vectors import rotated
from experiments.run_files.directory import CONFIG, MODEL, MODEL_INITIAL, RELEASES, read_releases
from experiments.run_files.model_files import read_arrays
from experiments.run_files.reader import read_config
from experiments.settings.experiment import build, run_secret
from experiments.settings.recorded import refuse_code, restored
from fedmf.audit import Finding, exact
from fedmf.audit.finding import least, smallest
from fedmf.audit.residual import FALSE_ALARM
from fedmf.errors import FedmfError, RunDirectoryError
from fedmf.mechanisms.noise import next_noise
from fedmf.normals import STEP
from fedmf.updates import wire

MODELS, SUMS, NOISE = "recorded model", "recorded sums", "recorded noise"
TESTS = (MODELS, SUMS, NOISE)
ERASED = "its secrets are erased, as in every private run; run.reproducible=true keeps them in the seed"


def recorded_findings(directory: Path, *, trust_code: bool = False) -> tuple[str, list[Finding]]:
    """Return the name of the run in `directory` and its findings.

    Raises `RunDirectoryError` where its releases were not kept or cannot be its own, `SettingError` for settings that name
    custom code without `trust_code`.
    """
    releases, document = read_releases(directory), read_config(directory)
    if not trust_code:
        refuse_code(directory, document, consent="trust_code=true")
    settings = restored(document)
    try:
        experiment = build(settings)
    except FedmfError:
        raise
    except (ValueError, OverflowError, MemoryError) as error:
        raise RunDirectoryError(
            f"the settings in {directory / CONFIG} cannot be those of a run ({error})."
        ) from error
    plan = experiment.plan
    if not 0 < len(releases) <= plan.participation.rounds or any(
        release.noisy_sum.shape != (plan.dimension,) for release in releases
    ):
        raise RunDirectoryError(
            f"{directory / RELEASES} is not of this run: it must hold 1 to {plan.participation.rounds} rounds of "
            f"{plan.dimension} numbers each."
        )
    last = replayed(plan, experiment.optimizer, experiment.initial, releases)[-1]
    files = {MODEL_INITIAL: experiment.initial, MODEL: last}
    has_ended = all((directory / file).is_file() for file in files)
    wrong = [
        file
        for file, vector in files.items()
        if has_ended and not _is_same(read_arrays(directory / file), model_arrays(experiment.model, vector))
    ]
    where = f"releases lead to another {', '.join(wrong)}" if wrong else f"{len(releases)} releases"
    where = where if has_ended else "the run has not finished"
    models = Finding(MODELS, float(len(wrong)), 0.0, bool(wrong), where=where, is_inconclusive=not has_ended)
    name = f"{settings.model.name} on {settings.dataset.name}, {plan.factorization.family}"
    if not settings.run.reproducible or plan.sigma == 0:
        why = ERASED if plan.sigma else "the run added no noise and states nothing"
        return name, [
            models,
            *(Finding(test, 0.0, 1.0, False, where=why, is_inconclusive=True) for test in TESTS[1:]),
        ]
    rounds = (
        cohorts(plan).reshape(-1, plan.participation.cohort_size)
        if settings.engine.name != "deployment"
        else None
    )
    key, stream, worst, scores = run_secret(settings), None, (0.0, "nothing is left"), []
    for release in releases:
        epoch, step = divmod(release.round - 1, plan.participation.rounds_per_epoch)
        if step == 0:
            key, stream = (key.ratchet() if epoch else key), None
        mechanism, released = plan.factorization.epochs[epoch].stream, release.noisy_sum.astype(np.float64)
        row, stream = next_noise(
            mechanism, stream or mechanism.init(plan.dimension), key, dimension=plan.dimension
        )
        left = released - plan.sigma_in(epoch) * STEP * (row.mean + row.own * row.fresh)
        if not np.isfinite(left).all():
            worst = np.inf, f"round {release.round}: not finite"
            continue
        # The release rounds the noisy sum to float32; transforms of float64 err by less than 2^-40 of what they turn.
        slack = float(np.linalg.norm(2.0**-24 * np.abs(released))) + 2.0**-40 * float(np.linalg.norm(left))
        length = float(np.linalg.norm(left))
        allowed = plan.participation.cohort_size * (plan.bounds.radius or np.inf) + slack
        worst = max(worst, (length / allowed, f"round {release.round}, all coordinates"))
        if plan.rotation.padded == plan.dimension:
            copies = np.full(plan.dimension, plan.participation.cohort_size)
            if rounds is not None and plan.compression.keep_probability < 1:
                copies = np.zeros(plan.dimension, np.int64)
                for client in rounds[release.round - 1]:
                    mask_key = key.mask_key(str(client), step)
                    copies[wire.coordinates(mask_key, plan.dimension, plan.compression.keep_probability)] += 1
            over = np.abs(rotated(plan, left)) / (copies * (plan.bounds.linf_norm or np.inf) + slack)
            worst = max(
                worst, (float(over.max()), f"round {release.round}, sent coordinate {int(over.argmax())}")
            )
        fresh = STEP * row.fresh
        inner, doubt = float(left @ fresh), slack * float(np.linalg.norm(fresh))
        scores.append(np.sign(inner) * max(0.0, abs(inner) - doubt) / length if length > slack else 0.0)
    sums = Finding(
        SUMS, worst[0], 1.0, worst[0] > 1, where=f"{worst[1]}; clipping is seen in coupled runs only"
    )
    if not scores:
        return name, [
            models,
            sums,
            Finding(NOISE, 0.0, 1.0, False, where="no round is finite", is_inconclusive=True),
        ]
    z = np.array([*scores, sum(scores) / len(scores) ** 0.5])
    return name, [
        models,
        sums,
        smallest(NOISE, FALSE_ALARM, [least(exact.normal(z), "round (the last: all together)")]),
    ]


def _is_same(stored: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    """Return whether two models have the same arrays, bit for bit."""
    return stored.keys() == expected.keys() and all(
        np.array_equal(stored[key], array, equal_nan=True) for key, array in expected.items()
    )
