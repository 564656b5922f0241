"""Two attacks, whose guesses are counted: they assume nothing about the mechanism, and see only large leaks.

Many runs: a coin decides in each whether one client, the canary, sends its vector or zeros. The attacker knows everything
but keys. Its best statistic is linear in the releases of each epoch (Gauss, Markov): N(mu, 1) or N(0, 1) by the coin, with
mu = sqrt(E)/noise multiplier, if the statement is true. Its threshold was fixed beforehand, the best one for halved noise.
One run: every client is a canary with a coordinate and a coin of its own; a fixed number of the surest guesses counts.
"""

from functools import partial

import numpy as np
from scipy.optimize import brentq

from experiments.audit.scene import L2_NORM, Run, Scene, cohorts, plan_of, stated_of, steps_of
from fedmf.accounting import gaussian_epsilon
from fedmf.audit import Finding, epsilon_lower_bound, one_run_lower_bound
from fedmf.mechanisms.workload import Float64
from fedmf.randomness import PublicSeed, SecretKey
from fedmf.updates.vectors import Vector

CONFIDENCE = 0.975  # of each: both together accuse an honest pipeline with probability at most 0.05
RUNS, EPSILON, DELTA, THRESHOLD = 1000, 1.5, 0.05, 1.15  # a large delta: counting cannot see rare events
CANARIES, GUESSES, ONE_EPSILON, ONE_DELTA, ROUNDS = 16384, 656, 2.0, 1e-5, 8


def attack_findings(mechanism: str, seed: int) -> list[Finding]:
    """Return the lower bounds on epsilon of a mechanism from both attacks."""
    return [many_runs(mechanism, seed), one_run(mechanism, seed)]


def multiplier(epsilon: float, delta: float, epochs: int) -> float:
    """Return the noise multiplier at which a run without masks states exactly (epsilon, delta)."""
    return float(epochs**0.5 / brentq(lambda mu: gaussian_epsilon(mu, delta) - epsilon, 1e-3, 10.0))


def filtered(scene: Scene, sums: Float64, epoch: int, step: int) -> tuple[Float64, float]:
    """Return the best estimate (d,) of a round's sum from its epoch's noisy sums in units of its noise, and what 1 adds."""
    stated = stated_of(scene).epochs[epoch]
    column = stated.whitening[:, step]
    gain = float(np.linalg.norm(column))
    return np.asarray(column @ (stated.whitening @ sums[epoch]) / (gain * stated.sigma)), gain / stated.sigma


def many_runs(mechanism: str, seed: int, runs: int = RUNS) -> Finding:
    """Return the bound from the canary that is guessed in many runs: in in every second one."""
    name, noise = f"one canary, {mechanism}", multiplier(EPSILON, DELTA, 2)
    scene = Scene(name, mechanism, rotation="identity", dimension=16, epochs=2, noise_multiplier=noise)
    canary = np.full(16, L2_NORM / 4, np.float32)
    claims = np.zeros((runs // 2, 2), bool)
    for pair, is_in in np.ndindex(claims.shape):
        client = pair % plan_of(scene).participation.clients
        key = SecretKey.reproducible(seed).derive(name, pair, is_in)
        sums = Run(scene, partial(_canary_of, canary, client if is_in else None), key).sums
        seen = [
            filtered(scene, sums, epoch, step) for epoch, step in enumerate(steps_of(plan_of(scene), client))
        ]
        score = sum(gain * float(values @ canary) for values, gain in seen)
        claims[pair, is_in] = score > THRESHOLD * L2_NORM * sum(gain**2 for _, gain in seen) ** 0.5
    misses, hits = map(int, claims.sum(axis=0))
    bound = epsilon_lower_bound(hits, len(claims), misses, len(claims), delta=DELTA, confidence=CONFIDENCE)
    where = f"{hits} of {len(claims)} right, {misses} of {len(claims)} false; delta {DELTA}"
    return Finding("attack on many runs", bound, EPSILON, bound > EPSILON, "epsilon", where, runs)


def _canary_of(canary: Vector, client: int | None, who: int, number: int) -> Vector:
    return canary if who == client else 0 * canary


def one_run(mechanism: str, seed: int) -> Finding:
    """Return the bound from one run whose clients are all canaries (Steinke, Nasr, Jagielski 2023)."""
    scene = Scene(
        f"all canaries, {mechanism}",
        mechanism,
        rotation="identity",
        dimension=CANARIES,
        cohort_size=CANARIES // ROUNDS,
        rounds_per_epoch=ROUNDS,
        epochs=1,
        together=64,
        noise_multiplier=multiplier(ONE_EPSILON, ONE_DELTA, 1),
    )
    coins = PublicSeed(seed).generator("audit coins", scene.name).integers(2, size=CANARIES)
    vectors = np.eye(1, CANARIES, dtype=np.float32)[0]
    secret = SecretKey.reproducible(seed).derive(scene.name)
    sums = Run(
        scene, lambda client, number: np.roll(vectors, client) * (L2_NORM * coins[client]), secret
    ).sums
    scores = np.zeros(CANARIES)
    for step, cohort in enumerate(cohorts(plan_of(scene))[0]):
        values, gain = filtered(scene, sums, 0, step)
        scores[cohort] = values[cohort] - gain * L2_NORM / 2
    surest = np.argsort(-np.abs(scores))[:GUESSES]
    right = int(((scores > 0) == coins)[surest].sum())
    bound = one_run_lower_bound(right, GUESSES, CANARIES, delta=ONE_DELTA, confidence=CONFIDENCE)
    where = f"{right} of {GUESSES} guesses right, {CANARIES} canaries; delta {ONE_DELTA}"
    return Finding("attack on one run", bound, ONE_EPSILON, bound > ONE_EPSILON, "epsilon", where, GUESSES)
