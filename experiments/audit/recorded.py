"""The audit of a run that was played already, from its directory: `run.keep_releases=true run.reproducible=true`.

A private run erases its secrets, and then nothing of this can be asked. A run that is reproducible has secrets which
its seed names: its noise can be drawn again, and what is left of each release when that is taken away is the sum of what
its clients sent. So the run audits itself, with the clients, the data and the training that it had:

    recorded model       the releases lead from the first model to model.npz, bit for bit
    recorded sums        what is left is a sum of n bounded vectors: within n Delta_2, in each sent coordinate within
                         Delta_inf for each client whose mask kept it, so exactly 0 where no mask did. For certain.
    recorded noise       what is left of a round, S, does not depend on the fresh row z of that round, so that
                         <S, z>/||S|| is exactly N(0, 1) given all rounds before, whatever the clients did. Noise of another
                         scale leaves some of z in S.

Fresh rows of earlier rounds are another matter: the models hold them, and clients train on models.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from client.parameters import model_arrays
from experiments.audit.pipeline import Float64
from experiments.audit.row import AS_SHIPPED, Row, Verdict
from experiments.audit.scene import cohorts, to_sent
from experiments.run_files.directory import CONFIG, MODEL, MODEL_INITIAL, RELEASES, read_releases
from experiments.run_files.model_files import read_arrays
from experiments.run_files.reader import read_config
from experiments.settings.experiment import Experiment, build, run_secret
from experiments.settings.recorded import refuse_code, restored
from experiments.settings.schema import Settings
from fedmf.audit import exact
from fedmf.audit.finding import smallest
from fedmf.audit.residual import FALSE_ALARM
from fedmf.errors import FedmfError, RunDirectoryError
from fedmf.mechanisms.noise import next_noise
from fedmf.normals import STEP
from fedmf.plan import Plan
from fedmf.randomness import SecretKey
from fedmf.updates import wire
from fedmf.updates.clipping import l2_norm
from server.state import Release, apply_release, begin_epoch, first_state

MODELS = "recorded model"
SUMS = "recorded sums"
NOISE = "recorded noise"
TESTS = (MODELS, SUMS, NOISE)
_UNIT = 2.0**-24  # half the distance of float32 numbers, relative


@dataclass(frozen=True)
class Left:
    """What is left of one release without its noise: `total` (d,), each entry known to `error`, and the fresh row `z`."""

    round: int
    total: Float64
    error: Float64
    z: Float64
    key: SecretKey


def recorded_rows(directory: Path, *, trust_code: bool = False) -> list[Row]:
    """Return the rows of the run in `directory`.

    Raises `RunDirectoryError` where its releases were not kept, `SettingError` for settings that name code of somebody's
    own without `trust_code`.
    """
    releases = read_releases(directory)
    document = read_config(directory)
    if not trust_code:
        refuse_code(directory, document, consent="trust_code=true")
    settings = restored(document)
    experiment = _built(directory, settings)
    if not releases:
        raise RunDirectoryError(f"{directory} holds no released round yet.")
    _refuse_of_another_run(directory, experiment.plan, releases)
    name = f"{settings.model.name} on {settings.dataset.name}, {experiment.plan.factorization.family}"
    rows = [_models(name, directory, experiment, releases)]
    if why := _unknown(settings, experiment):
        return [
            *rows,
            *(_row(name, test, "-", "-", None, Verdict.inconclusive, why) for test in (SUMS, NOISE)),
        ]
    left = _without_noise(experiment.plan, run_secret(settings), releases)
    return [*rows, _sums(name, experiment.plan, left, settings), _noise(name, left)]


def _built(directory: Path, settings: Settings) -> Experiment:
    """Return the experiment of a run. Raises `RunDirectoryError` for numbers in its settings that no memory holds."""
    try:
        return build(settings)
    except FedmfError:
        raise
    except (ValueError, OverflowError, MemoryError) as error:
        raise RunDirectoryError(
            f"the settings in {directory / CONFIG} cannot be those of a run ({error})."
        ) from error


def _refuse_of_another_run(directory: Path, plan: Plan, releases: list[Release]) -> None:
    """Raise `RunDirectoryError` unless the releases are as long and as many as the settings of the run allow."""
    where = f"{directory / RELEASES} is not of this run:"
    if len(releases) > plan.participation.rounds:
        raise RunDirectoryError(
            f"{where} it holds {len(releases)} rounds, and the run has {plan.participation.rounds}."
        )
    for release in releases:
        if release.noisy_sum.shape != (plan.dimension,):
            raise RunDirectoryError(
                f"{where} round {release.round} has {release.noisy_sum.size} numbers, and the model {plan.dimension}."
            )


def _unknown(settings: Settings, experiment: Experiment) -> str:
    """Return why the noise of a run cannot be drawn again, "" where it can."""
    if not settings.run.reproducible:
        return "its secrets are erased, as those of a private run must be; run.reproducible=true keeps them in the seed"
    if experiment.plan.sigma == 0:
        return "the run added no noise and states nothing"
    return ""


def _models(name: str, directory: Path, experiment: Experiment, releases: list[Release]) -> Row:
    """Return whether the releases lead from the first model to the last, bit for bit."""
    state = first_state(experiment.plan, experiment.initial, SecretKey.reproducible(0))
    for release in releases:
        begun = begin_epoch(experiment.plan, state)
        state = apply_release(experiment.plan, experiment.optimizer, begun, release, None)
    wrong = []
    for file, vector in ((MODEL_INITIAL, experiment.initial), (MODEL, state.model)):
        if not (directory / file).is_file():
            return _row(
                name, MODELS, f"no {file}", "-", 0.0, Verdict.inconclusive, "the run has not finished"
            )
        stored, expected = read_arrays(directory / file), model_arrays(experiment.model, vector)
        same = stored.keys() == expected.keys() and all(
            np.array_equal(stored[key], expected[key], equal_nan=True) for key in expected
        )
        wrong += [] if same else [file]
    verdict = Verdict.refuted if wrong else Verdict.nothing_found
    observed = f"{len(releases)} releases lead to {'another ' + ', '.join(wrong) if wrong else MODEL}"
    return _row(name, MODELS, observed, "bit for bit", 0.0, verdict)


def _without_noise(plan: Plan, key: SecretKey, releases: list[Release]) -> list[Left]:
    """Return what is left of each release when its noise, drawn again, is taken away."""
    found, stream = [], None
    for release in releases:
        epoch, step = divmod(release.round - 1, plan.participation.rounds_per_epoch)
        if step == 0:
            key, stream = (key.ratchet() if epoch else key), None
        mechanism, d = plan.factorization.epochs[epoch].stream, plan.dimension
        row, stream = next_noise(mechanism, stream or mechanism.init(d), key, dimension=d)
        z, added = STEP * row.fresh, plan.sigma_in(epoch) * STEP * (row.mean + row.own * row.fresh)
        total = release.noisy_sum.astype(np.float64) - added
        # The release rounds the noisy sum to float32; the transforms of float64 sums are below 2^-40 of what they turn.
        error = _UNIT * np.abs(release.noisy_sum).astype(np.float64) + 2.0**-40 * np.abs(total).max()
        found.append(Left(release.round, total, error, z, key))
    return found


def _sums(name: str, plan: Plan, left: list[Left], settings: Settings) -> Row:
    """Return whether each sum is one of n bounded vectors, each under its own mask."""
    radius, linf = plan.bounds.radius, plan.bounds.linf_norm
    assert radius is not None
    assert linf is not None
    n, d = plan.participation.cohort_size, plan.dimension
    kept_whole = plan.rotation.padded == d  # else what was sent does not follow from what is left
    knows_cohorts = settings.engine.name != "deployment"  # there nodes say who takes part
    who = cohorts(plan) if knows_cohorts else []
    rotate = to_sent(plan)
    if endless := [str(one.round) for one in left if not np.isfinite(one.total).all()]:
        note = f"no sum of bounded vectors is; of rounds {', '.join(endless)}"
        return _row(name, SUMS, "a number that is not finite", "1", 0.0, Verdict.refuted, note)
    worst, where, silent = 0.0, "", 0
    for one in left:
        slack = float(np.linalg.norm(one.error))
        ratios = {"all coordinates": l2_norm(one.total) / (n * radius + slack)}
        if kept_whole:
            copies = np.full(d, n)
            if knows_cohorts and plan.compression.keep_probability < 1:
                step = (one.round - 1) % plan.participation.rounds_per_epoch
                copies = np.zeros(d, np.int64)
                for client in who[one.round - 1]:
                    mask_key = one.key.mask_key(str(client), step)
                    copies[wire.coordinates(mask_key, d, plan.compression.keep_probability)] += 1
            silent += int((copies == 0).sum())
            allowed = copies * linf + (one.error if plan.rotation.kind == "identity" else slack)
            over = np.abs(rotate(one.total)) / allowed
            ratios[f"sent coordinate {int(over.argmax())}"] = float(over.max())
        place = max(ratios, key=lambda key: ratios[key])
        if ratios[place] >= worst:
            worst, where = ratios[place], f"round {one.round}, {place}"
    verdict = Verdict.nothing_found if worst <= 1 else Verdict.refuted
    note = f"{where}; {silent} coordinates of rounds that no mask kept; clipping is not seen here, but in coupled runs"
    return _row(name, SUMS, f"{worst:.4f} of what {n} clients can send", "1", 0.0, verdict, note)


def _noise(name: str, left: list[Left]) -> Row:
    """Return whether the noise in the releases is the stated noise at its stated scale: by round, and together."""
    left = [one for one in left if np.isfinite(one.total).all()]  # of the others the sums are refuted
    if not left:
        return _row(name, NOISE, "-", "-", None, Verdict.inconclusive, "no round is finite")
    scores = []
    for one in left:
        length, slack = float(np.linalg.norm(one.total)), float(np.linalg.norm(one.error))
        inner = float(one.total @ one.z)
        doubt = slack * float(
            np.linalg.norm(one.z)
        )  # rounding hangs on the noise; what it may have added goes
        certain = np.sign(inner) * max(0.0, abs(inner) - doubt)
        scores.append(certain / length if length > slack else 0.0)
    together = sum(scores) / len(scores) ** 0.5
    labels = [*(f"round {one.round}" for one in left), "all rounds"]
    found = smallest(NOISE, exact.normal(np.array([*scores, together])), labels, FALSE_ALARM)
    verdict = Verdict.refuted if found.refutes else Verdict.nothing_found
    observed = f"p = {found.observed:.3g} over {found.tests} tests"
    return _row(name, NOISE, observed, f"p > {found.limit:.2g}", found.false_alarm, verdict, found.where)


def _row(
    name: str,
    test: str,
    observed: str,
    limit: str,
    false_alarm: float | None,
    verdict: Verdict,
    note: str = "",
) -> Row:
    return Row(name, AS_SHIPPED, test, observed, limit, false_alarm, verdict, note)
