"""The audit of a run that was made already, from its directory: `run.keep_releases=true run.reproducible=true`.

A private run erases its secrets, and then only the first of these can be asked. In a reproducible one the seed names them:
its noise can be drawn again, and what is left of each release is the sum of what its clients sent.

    recorded model    the releases lead from the first model to model.npz, bit for bit
    recorded sums     what is left is within n Delta_2, and in each sent coordinate within Delta_inf for each client whose
                      mask kept it, so exactly 0 where no mask did
    recorded noise    what is left of a round, S, does not depend on the fresh row z of that round, so that <S, z>/||S|| is
                      N(0, 1). Noise that was added in another scale leaves some of z in S
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from client.parameters import model_arrays
from experiments.audit.scene import cohorts, replayed, rotated
from experiments.run_files.directory import CONFIG, MODEL, MODEL_INITIAL, RELEASES, read_releases
from experiments.run_files.model_files import read_arrays
from experiments.run_files.reader import read_config
from experiments.settings.experiment import Experiment, build, run_secret
from experiments.settings.recorded import refuse_code, restored
from fedmf.audit import Finding
from fedmf.audit.finding import least, normal_p, smallest
from fedmf.audit.residual import FALSE_ALARM
from fedmf.errors import FedmfError, RunDirectoryError
from fedmf.mechanisms.noise import next_noise
from fedmf.normals import STEP
from fedmf.plan import Plan
from fedmf.randomness import SecretKey
from fedmf.updates import wire
from server.state import Release

MODELS, SUMS, NOISE = "recorded model", "recorded sums", "recorded noise"
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
    found = [_models(directory, experiment, releases)]
    if settings.run.reproducible and plan.sigma:
        rounds = None  # clients of a deployment have other names
        if settings.engine.name != "deployment":
            rounds = cohorts(plan).reshape(-1, plan.participation.cohort_size)
        found += _sums_and_noise(plan, run_secret(settings), releases, rounds)
    else:
        why = ERASED if plan.sigma else "the run added no noise and states nothing"
        found += [Finding(test, 0.0, 1.0, False, where=why, is_inconclusive=True) for test in (SUMS, NOISE)]
    return f"{settings.model.name} on {settings.dataset.name}, {plan.factorization.family}", found


def _models(directory: Path, experiment: Experiment, releases: Sequence[Release]) -> Finding:
    """Return the number of model files that do not follow from the releases."""
    last = replayed(experiment.plan, experiment.optimizer, experiment.initial, releases)[-1]
    files = {MODEL_INITIAL: experiment.initial, MODEL: last}
    if not all((directory / file).is_file() for file in files):
        return Finding(MODELS, 0.0, 0.0, False, where="the run has not finished", is_inconclusive=True)
    wrong = [
        file
        for file, vector in files.items()
        if not _is_same(read_arrays(directory / file), model_arrays(experiment.model, vector))
    ]
    where = f"releases lead to another {', '.join(wrong)}" if wrong else f"{len(releases)} releases"
    return Finding(MODELS, float(len(wrong)), 0.0, bool(wrong), where=where)


def _sums_and_noise(
    plan: Plan, key: SecretKey, releases: Sequence[Release], rounds: npt.NDArray[np.int64] | None
) -> list[Finding]:
    """Return the findings on what is left of each release without its noise; `rounds` (rounds, n) names the clients, if known."""
    n, gamma = plan.participation.cohort_size, plan.compression.keep_probability
    stream, worst, scores = None, (0.0, "nothing is left"), []
    for release in releases:
        epoch, step = divmod(release.round - 1, plan.participation.rounds_per_epoch)
        if step == 0:
            key, stream = (key.ratchet() if epoch else key), None
        mechanism, where = plan.factorization.epochs[epoch].stream, f"round {release.round}"
        stream = stream or mechanism.init(plan.dimension)
        row, stream = next_noise(mechanism, stream, key, dimension=plan.dimension)
        noise = plan.sigma_in(epoch) * STEP * (row.mean + row.own * row.fresh)
        left = release.noisy_sum.astype(np.float64) - noise
        if not np.isfinite(left).all():
            worst = np.inf, f"{where}: not finite"
            continue
        # The release rounds the noisy sum to float32; transforms of float64 err by less than 2^-40 of what they turn.
        length = float(np.linalg.norm(left))
        slack = float(np.linalg.norm(2.0**-24 * np.abs(release.noisy_sum))) + 2.0**-40 * length
        over = length / (n * (plan.bounds.radius or np.inf) + slack)
        worst = max(worst, (over, f"{where}, all coordinates"))
        if plan.rotation.padded == plan.dimension:
            copies = np.full(plan.dimension, n)
            if rounds is not None and gamma < 1:
                copies = np.zeros(plan.dimension, np.int64)
                for client in rounds[release.round - 1]:
                    copies[wire.coordinates(key.mask_key(str(client), step), plan.dimension, gamma)] += 1
            each = np.abs(rotated(plan, left)) / (copies * (plan.bounds.linf_norm or np.inf) + slack)
            worst = max(worst, (float(each.max()), f"{where}, sent coordinate {int(each.argmax())}"))
        fresh = STEP * row.fresh
        inner, doubt = float(left @ fresh), slack * float(np.linalg.norm(fresh))
        scores.append(np.sign(inner) * max(0.0, abs(inner) - doubt) / length if length > slack else 0.0)
    where = f"{worst[1]}; clipping is seen in coupled runs only"
    sums = Finding(SUMS, worst[0], 1.0, worst[0] > 1, where=where)
    if not scores:
        return [sums, Finding(NOISE, 0.0, 1.0, False, where="no round is finite", is_inconclusive=True)]
    z = np.array([*scores, sum(scores) / len(scores) ** 0.5])
    return [
        sums,
        smallest(NOISE, FALSE_ALARM, [least(normal_p(z), "round (the last: all together)")]),
    ]


def _is_same(stored: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    """Return whether two models have the same arrays, bit for bit."""
    return stored.keys() == expected.keys() and all(
        np.array_equal(stored[key], array, equal_nan=True) for key, array in expected.items()
    )
