"""How probably each row refutes noise that is a factor too small: the power table of docs/audit.md.

Exact for residuals (`fedmf.audit.power`); by simulation of the law for rows that attack, because the pipeline would take
days: observations whose noise is the factor times the stated one, under the rule of the row. Coupled rows see no factor:
what they look at has no noise left.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from experiments.audit.digits import Setup, build_stage
from experiments.audit.law import Bound, Float64, Law, Rule, choose_rule
from experiments.audit.levels import Bounds, Levels
from experiments.audit.one_run import OneRunSetup, quotas, right_guesses, stated_mu
from experiments.audit.scene import Scene
from experiments.audit.trials import epsilon_bounds, stated_law
from fedmf.audit import exact, power as residual_power
from fedmf.audit.bounds import one_run_lower_bound
from fedmf.audit.gaussian_bounds import f_dp_one_run_mu_lower_bound, mu_lower_bound
from fedmf.audit.residual import FALSE_ALARM, PAIRS, TAILS, TESTS, VARIANCE
from fedmf.randomness import PublicSeed

FACTORS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.958, 1.0)
POOL = 10_000  # simulated runs with the client in, and as many with it out, behind each figure
REPEATS = 1000  # made-up outcomes of an audit
CORRELATIONS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5)  # of two coordinates


@dataclass(frozen=True)
class Power:
    """The probability with which a row refutes, (factor,) in the order of `FACTORS`."""

    test: str
    pipeline: str
    probabilities: tuple[float, ...]

    def as_document(self) -> dict[str, Any]:
        """Return the row as JSON-ready values."""
        by_factor = zip(map(str, FACTORS), self.probabilities, strict=True)
        return {"test": self.test, "pipeline": self.pipeline, "probability": dict(by_factor)}


def residual_powers(scene: Scene, runs: int, level: float = FALSE_ALARM) -> list[Power]:
    """Return the power of the rows on residuals that see a factor; `level` is the false alarm of the scene's noise."""
    found = [
        {
            power.test: power.probability
            for power in residual_power(
                factor,
                runs=runs,
                epochs=scene.epochs,
                rounds=scene.rounds_per_epoch,
                coordinates=scene.dimension,
                false_alarm=level,
            )
        }
        for factor in FACTORS
    ]
    return [
        Power(
            test, f"{runs} runs of {scene.dimension} coordinates", tuple(by_test[test] for by_test in found)
        )
        for test in (VARIANCE, TAILS)
    ]


def correlation_powers(scene: Scene, runs: int, level: float, *, seed: int) -> tuple[float, ...]:
    """Return how often two correlated coordinates among all are found, by `CORRELATIONS`: by simulation, exact p-values.

    Of the row that compares all pairs of coordinates, from so many runs of a scene; `level` is that of the scene's noise.
    """
    values = runs * scene.epochs * scene.rounds_per_epoch
    pairs = scene.dimension * (scene.dimension - 1) // 2
    first, second = (
        PublicSeed(seed).generator("audit power", PAIRS, runs).standard_normal((2, REPEATS, values))
    )
    found = []
    for rho in CORRELATIONS:
        other = rho * first + (1 - rho * rho) ** 0.5 * second
        lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(other, axis=1)
        p_values = exact.correlation((first * other).sum(axis=1) / lengths, values)
        found.append(float((pairs * p_values <= level / len(TESTS)).mean()))
    return tuple(found)


def many_run_powers(setup: Setup, runs: int, levels: Levels) -> list[Power]:
    """Return the power of the rows that attack a pipeline played many times."""
    law, name = stated_law(setup), f"{setup.mechanism}, gamma {setup.keep_probability:g}, {runs} runs"
    epsilon = epsilon_bounds(setup, levels)
    half = replace(law, noise=0.5)
    simulated = partial(_attacked, setup, runs, epsilon, setup.epsilon)
    rows = [
        Power("many runs, stated law", name, simulated(lambda factor: law)),
        Power("many runs, halved noise", name, simulated(lambda factor: half)),
    ]
    if setup.keep_probability < 1:
        fitted = simulated(lambda factor: replace(law, noise=factor))
        return [*rows, Power("many runs, fitted noise (all runs)", name, fitted)]
    plan = build_stage(setup).plan
    mu = plan.participation.epochs**0.5 / plan.noise_multiplier
    bounds = levels.bounds(mu_lower_bound, levels.attack)
    return [*rows, Power("many runs, mu-GDP", name, _attacked(setup, runs, bounds, mu, lambda factor: law))]


def _attacked(
    setup: Setup, runs: int, bounds: Bounds, limit: float, assumed: Callable[[float], Law]
) -> tuple[float, ...]:
    """Return how often the bound that decides exceeds `limit` when the noise is a factor of the stated one, under assumed laws."""
    stated, found = stated_law(setup), []
    everyone = np.arange(POOL) % len(stated.shifts)
    for factor in FACTORS:
        rng = PublicSeed(setup.seed).generator("audit power", setup.name, str(factor))
        law, true = assumed(factor), replace(stated, noise=factor)
        rule = choose_rule(law, runs=runs, bound=bounds.by_itself, rng=rng)
        rates = [
            float(rule.claims(law.score(true.simulate(everyone, present=present, rng=rng), everyone)).mean())
            for present in (True, False)
        ]
        found.append(_exceeding(rule, rates, runs, bounds.decides, limit, rng))
    return tuple(found)


def _exceeding(
    rule: Rule, rates: Sequence[float], runs: int, bound: Bound, limit: float, rng: np.random.Generator
) -> float:
    """Return how often `bound` exceeds `limit` where the rule claims runs with the client in, and out, at these rates."""
    high, low = rates if rule.side > 0 else rates[::-1]
    trials = runs // 2
    hits, misses = rng.binomial(trials, high, REPEATS), rng.binomial(trials, low, REPEATS)
    outcomes = {(hit, miss) for hit, miss in zip(hits.tolist(), misses.tolist(), strict=True)}
    exceeds = {pair: bound(pair[0], trials, pair[1], trials) > limit for pair in outcomes}
    return sum(exceeds[pair] for pair in zip(hits.tolist(), misses.tolist(), strict=True)) / REPEATS


def many_run_control_power(setup: Setup, law: Law, runs: int, levels: Levels) -> float:
    """Return how probably the headline row finds a sabotage in so many runs, of which `law` is the law."""
    bounds = epsilon_bounds(setup, levels)
    rng = PublicSeed(setup.seed).generator("audit control power", setup.name)
    rule = choose_rule(law, runs=runs, bound=bounds.by_itself, rng=rng)
    rates = [
        float(rule.claims(law.scores(POOL, present=present, rng=rng)).mean()) for present in (True, False)
    ]
    return _exceeding(rule, rates, runs, bounds.decides, setup.epsilon, rng)


def one_run_control_powers(setup: OneRunSetup, factor: float, levels: Levels) -> tuple[float, float]:
    """Return how probably the rows on one run, epsilon and f-DP, find noise of `factor` times the stated one."""
    mu = stated_mu(setup)
    count = _right(setup, mu, factor, REPEATS)
    epsilon, f_dp = least_right(setup, mu, levels).values()
    return float((count >= epsilon).mean()), float((count >= f_dp).mean())


def one_run_powers(setup: OneRunSetup, levels: Levels, repeats: int = 100) -> list[Power]:
    """Return the power of the rows on one run whose clients are all canaries."""
    name = f"{setup.mechanism}, gamma 1, {setup.guesses} guesses of {setup.canaries}"
    mu = stated_mu(setup)
    counts = [_right(setup, mu, factor, repeats) for factor in FACTORS]
    return [
        Power(test, name, tuple(float((count >= least).mean()) for count in counts))
        for test, least in least_right(setup, mu, levels).items()
    ]


def _right(setup: OneRunSetup, mu: float, factor: float, repeats: int) -> Float64:
    """Return how many guesses are right in made-up runs, (repeats,)."""
    rng = PublicSeed(setup.seed).generator("audit power", setup.name, str(factor))
    parts = quotas(setup.guesses)
    found = []
    for _ in range(repeats):
        coins = rng.integers(2, size=(len(parts), setup.canaries // len(parts)))
        seen = mu * coins + factor * rng.standard_normal(coins.shape)
        found.append(
            sum(right_guesses(seen[place], coins[place], quota) for place, quota in enumerate(parts))
        )
    return np.array(found)


def least_right(setup: OneRunSetup, mu: float, levels: Levels) -> dict[str, int]:
    """Return the least number of right guesses from which each row on one run refutes, by its name."""
    size = setup.guesses, setup.canaries
    epsilon = levels.bounds(partial(one_run_lower_bound, delta=setup.delta), levels.one_run).decides
    f_dp = levels.bounds(f_dp_one_run_mu_lower_bound, levels.attack).decides
    return {
        "one run": _least(setup.guesses, lambda correct: epsilon(correct, *size) > setup.epsilon),
        "one run, f-DP": _least(setup.guesses, lambda correct: f_dp(correct, *size) > mu),
    }


def _least(guesses: int, refutes: Callable[[int], bool]) -> int:
    """Return the least number of right guesses that refutes, guesses + 1 where none does; more refute too."""
    low, high = 0, guesses + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if middle == guesses + 1 or refutes(middle) else (middle + 1, high)
    return low


def in_words(rows: Sequence[Power]) -> list[str]:
    """Return the rows as lines of a Markdown table."""
    head = "| row | " + " | ".join(f"{factor:g}" for factor in FACTORS) + " |"
    lines = [head, "|---" * (len(FACTORS) + 1) + "|"]
    for row in rows:
        cells = " | ".join(f"{probability:.3g}" for probability in row.probabilities)
        lines.append(f"| {row.test}: {row.pipeline} | {cells} |")
    return lines


def correlations_in_words(rows: Sequence[tuple[int, Sequence[float]]]) -> list[str]:
    """Return (runs, probabilities) of `correlation_powers` as lines of a Markdown table."""
    lines = ["| runs | " + " | ".join(f"{rho:g}" for rho in CORRELATIONS) + " |"]
    lines.append("|---" * (len(CORRELATIONS) + 1) + "|")
    return lines + [f"| {runs} | " + " | ".join(f"{p:.3g}" for p in found) + " |" for runs, found in rows]
