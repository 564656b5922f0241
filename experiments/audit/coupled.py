"""Coupled runs of the real pipeline: the same secrets, one client in and out, for each way a run can go.

All noise cancels; what is left is what the client changed, and must be its own bounded vector, in its own round. Nothing
is left to chance: a row is refuted by a single pair, and an honest pipeline never is. `fedmf.audit.coupling` has the
statement, `experiments.audit.scene.recovered` the bound on rounding errors.

What the client sends, and when: `experiments.audit.crossing`. In one scene it is hostile: it sends its vectors as they
are, twice, and the server alone holds it to its bounds.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from experiments.audit.crossing import CANARIES, PAIRS, crossing, holdings, needed, signs_of
from experiments.audit.pipeline import Float64, Played
from experiments.audit.row import Row, Verdict
from experiments.audit.sabotage import NONE, Sabotage
from experiments.audit.scene import (
    L2_NORM,
    Scene,
    plan_of,
    play,
    recovered,
    stated_of,
    steps_of,
    to_sent,
)
from fedmf.audit.coupling import L2, coupled, whole_vector
from fedmf.audit.finding import Finding
from fedmf.errors import (
    DivergedError,
    ParticipationError,
    ReleaseOrderError,
    RunDirectoryError,
    RunStoppedError,
)
from fedmf.plan import Plan
from fedmf.randomness import SecretKey
from fedmf.updates.rounding import level_step
from fedmf.updates.vectors import Vector

SENSITIVITY = "coupled sensitivity"
OWN_ROUND = "coupled own round"
WHOLE_VECTOR = "coupled whole vector"
JOURNAL = "coupled journal"
TESTS = (SENSITIVITY, OWN_ROUND, WHOLE_VECTOR, JOURNAL)
BROKEN_OFF = (DivergedError, ParticipationError, ReleaseOrderError, RunDirectoryError, RunStoppedError)
SCENES = (
    Scene("optimal, rotated", noise_multiplier=0.1),
    Scene("optimal, rotated and padded", noise_multiplier=0.1, dimension=200, together=3),
    Scene("optimal, masks", noise_multiplier=0.1, keep_probability=0.3, rotation="identity", linf=64),
    Scene("optimal, rotated, masks, shared messages", noise_multiplier=0.1, keep_probability=0.3, together=2),
    Scene("optimal, rotated, masks, int8", noise_multiplier=0.1, keep_probability=0.3, value_type="int8"),
    Scene("optimal, masks, silent clients, resumed in an epoch", noise_multiplier=0.1, keep_probability=0.3,
          rotation="identity", linf=64, muted=True, resume_after=2),
    Scene("optimal, rotated, resumed in the last epoch", noise_multiplier=0.1, resume_after=4),
    Scene("independent, rotated", mechanism="independent", noise_multiplier=0.1),
    Scene("binary tree, masks", mechanism="binary_tree", noise_multiplier=0.1, keep_probability=0.3, linf=64,
          rotation="identity", rounds_per_epoch=4),
    Scene("optimal, more than a block of noise", noise_multiplier=0.1, rotation="identity", dimension=40_000, linf=64,
          cohort_size=2),
    Scene("optimal, rotated, a hostile client", noise_multiplier=0.1, hostile=True),
)  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """Two runs of one secret: the client in and out, with its steps and the name of what it sent."""

    canary: str
    steps: tuple[int | None, ...]
    inside: Played
    outside: Played


def coupled_rows(
    scene: Scene, sabotage: Sabotage = NONE, *, pairs: int | None = None, seed: int = 0
) -> list[Row]:
    """Return the rows of one scene from so many pairs, or (None) from as many as `needed` to send all in every round."""
    plan = plan_of(scene)
    count = needed(plan) if pairs is None else pairs
    try:
        played = [play_pair(scene, number, sabotage, seed) for number in range(count)]
    except (
        BROKEN_OFF
    ) as error:  # honest runs never are; here a client's vector may decide how many rounds there are
        broken = Finding(OWN_ROUND, np.inf, 0.0, True, None, f"a run broke off: {error}")
        return [_row(scene, sabotage, OWN_ROUND, [broken], "")]
    findings = [finding for pair in played for finding in _sensitivities(scene, plan, pair)]
    by_kind = {
        SENSITIVITY: [finding for finding in findings if "sensitivity" in finding.test],
        OWN_ROUND: [finding for finding in findings if "sensitivity" not in finding.test],
        JOURNAL: [finding for pair in played for finding in _journal(plan, pair)],
    }
    if scene.keep_probability < 1 and scene.keeps_all:
        by_kind[WHOLE_VECTOR] = [_whole(scene, plan, played, sabotage, seed)]
    is_refuted = any(finding.refutes for found in by_kind.values() for finding in found)
    blind = "" if is_refuted else _blindness(scene, played, by_kind)
    return [_row(scene, sabotage, test, found, blind) for test, found in by_kind.items()]


def play_pair(
    scene: Scene, number: int, sabotage: Sabotage = NONE, seed: int = 0, canary: str | None = None
) -> Pair:
    """Return pair `number` (0-based) of a scene, with the canary whose turn it is or a given one."""
    plan = plan_of(scene)
    turns = crossing(plan)
    turn, client = turns[number % len(turns)]
    canary = turn if canary is None else canary
    secret = SecretKey.reproducible(seed).derive("coupled", scene.name, canary, number)
    with quiet_client():
        inside, outside = (
            play(
                scene, secret, holdings(scene, plan, client, canary, present=present), sabotage, heard=client
            )
            for present in (True, False)
        )
    return Pair(canary, steps_of(plan, client), inside, outside)


def _sensitivities(scene: Scene, plan: Plan, pair: Pair) -> Iterator[Finding]:
    """Yield the findings of one pair, of its models and of what stood there before the first round."""
    difference, error = _difference(plan, pair)
    stated = stated_of(scene)
    if (
        not scene.keeps_all
    ):  # what was sent does not follow: the L-infinity bound speaks of coordinates that are gone
        stated = replace(stated, linf_norm=None)
    found = coupled(
        difference,
        np.zeros_like(difference),
        stated,
        own_rounds=pair.steps,
        tolerance=error,
        rotate=to_sent(plan) if scene.keeps_all else None,
    )
    yield from (replace(finding, where=f"client {pair.canary}, {finding.where}") for finding in found)
    where = f"client {pair.canary}, the model before the first round"
    with np.errstate(invalid="ignore"):
        start = pair.inside.models[0] - pair.outside.models[0]
    moved = float(np.abs(start).max()) / L2_NORM if np.isfinite(start).all() else np.inf
    yield Finding(OWN_ROUND, moved, 0.0, moved > 0, None, where)


def _difference(plan: Plan, pair: Pair) -> tuple[Float64, Float64]:
    """Return the difference of a pair's noisy sums and the bound on its error, both (E, T, d).

    A client takes the start away from what it trained, so that a known vector is rounded to 2^-24 of the two: by others in
    the two worlds, whose models differ. Bounded to a norm of 1, each moves a sum by at most 2^-22 (1 + norm of the start).
    """
    (inside, error), (outside, other_error) = (
        recovered(plan, played.models) for played in (pair.inside, pair.outside)
    )
    with np.errstate(invalid="ignore", over="ignore"):
        norms = sum(np.linalg.norm(played.models[:-1], axis=1) for played in (pair.inside, pair.outside))
        rounded = 2.0**-22 * plan.participation.cohort_size * np.nan_to_num(2 + norms, posinf=0)
        shape = (plan.participation.epochs, plan.participation.rounds_per_epoch, 1)
        return inside - outside, error + other_error + rounded.reshape(shape)


def _whole(scene: Scene, plan: Plan, played: list[Pair], sabotage: Sabotage, seed: int) -> Finding:
    """Return the norm of the whole vector that a client far over both bounds sends, put together from many masks."""
    played = [pair for pair in played if pair.canary == CANARIES[0]]
    more = range(PAIRS - len(played))  # pairs whose turn is another kind's
    played += [play_pair(scene, 1 + number, sabotage, seed, CANARIES[0]) for number in more]
    rotate = to_sent(plan)
    rows, slack = [], []
    for pair in played:
        difference, error = _difference(plan, pair)
        for epoch, step in enumerate(pair.steps):
            assert step is not None
            rows.append(signs_of(scene, epoch) * rotate(difference[epoch, step]))  # the same vector in all
            slack.append(float(np.linalg.norm(error[epoch, step])))
    between = 0.0
    if scene.value_type == "int8":
        assert plan.bounds.linf_norm is not None
        between = float(level_step(plan.bounds.linf_norm))
    return whole_vector(np.array(rows), stated_of(scene), tolerance=np.array(slack)[:, None], step=between)


def _journal(plan: Plan, pair: Pair) -> Iterator[Finding]:
    """Yield whether the journal holds each round once, with one content, and the models follow from it."""
    for played in (pair.inside, pair.outside):
        sums, error = recovered(plan, played.models)
        sums, error = (array.reshape(plan.participation.rounds, -1) for array in (sums, error))
        first: dict[int, Vector] = {}
        for release in played.committed:
            before = first.setdefault(release.round, release.noisy_sum)
            where = f"client {pair.canary}, round {release.round}"
            if not np.array_equal(before, release.noisy_sum):
                change = float(np.linalg.norm(before - release.noisy_sum)) / L2_NORM
                yield Finding(JOURNAL, change, 0.0, True, None, f"{where} released twice, differently")
        for number in range(plan.participation.rounds):
            where = f"client {pair.canary}, round {number + 1}"
            if number + 1 not in first:
                yield Finding(JOURNAL, np.inf, 0.0, True, None, f"{where} is not in the journal")
                continue
            gap = np.abs(first[number + 1] - sums[number])
            place = int((gap - error[number]).argmax())
            observed, limit = float(gap[place]) / L2_NORM, float(error[number, place]) / L2_NORM
            yield Finding(
                JOURNAL, observed, limit, not observed <= limit, None, f"{where}, coordinate {place}"
            )


def _blindness(scene: Scene, played: list[Pair], by_kind: dict[str, list[Finding]]) -> str:
    """Return why nothing could have been found, "" where it could: the client's vector must be seen at its full length."""
    largest = max(finding.observed for finding in by_kind[SENSITIVITY] if finding.test == L2)
    epochs = stated_of(scene).epochs
    reach = max(
        float(np.linalg.norm(epochs[e].whitening[:, step])) / epochs[e].sensitivity
        for pair in played
        for e, step in enumerate(pair.steps)
        if step is not None
    )
    if scene.keep_probability == 1 and largest < 0.99 * reach:
        return f"no client was seen at its bound: {largest:.4f} of {reach:.4f}"
    if scene.keep_probability < 1 and largest < 0.5 * reach * scene.keep_probability**0.5:
        return f"no client was seen near its bound: {largest:.4f} of {reach:.4f} before masks"
    return ""


def _row(scene: Scene, sabotage: Sabotage, test: str, findings: list[Finding], blind: str) -> Row:
    """Return the row of findings of one kind: that which refutes most, or comes nearest."""
    worst = max(findings, key=lambda finding: (finding.refutes, finding.observed))
    verdict = Verdict.nothing_found
    if worst.refutes:
        verdict = Verdict.refuted
    elif blind:
        verdict = Verdict.inconclusive
    form = ".4f" if test in (SENSITIVITY, WHOLE_VECTOR) else ".2g"
    return Row(
        scene.name,
        sabotage.name,
        test,
        f"{worst.observed:{form}} of the bound",
        f"{worst.limit:{form}}",
        0.0,
        verdict,
        blind or f"{worst.test}: {worst.where}",
        worst.observed / worst.limit if worst.limit else None,
    )


@contextmanager
def quiet_client() -> Iterator[None]:
    """Say nothing of clients that cannot train: those that are not finite are meant."""
    logger = logging.getLogger("client.app")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
