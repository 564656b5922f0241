"""Rows that use the runs of the headline rows in other ways.

    many runs, learned         a discriminant that was told of no fault, fitted on half of the runs
    many runs, mu-GDP          at keep probability 1: mu against the plan's, if the curve is a Gaussian's
    many runs, fitted noise    below 1: the law with the noise that a tenth of the runs shows
    exact epsilon              below 1: what the stated law itself gives away, against the stated epsilon
    many runs, exact epsilon   below 1: the headline's and the last one's bound against that
    one run, f-DP              mu from the guesses of the one-run audit

With masks the stated epsilon comes from Renyi divergence and is larger than the exact one. A bound between the two
refutes that the pipeline follows its law, not that it keeps its statement.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from scipy.optimize import minimize_scalar

from experiments.audit.digits import Runs, Setup, build_stage
from experiments.audit.exact import ExactEpsilon, check_reach, exact_epsilon
from experiments.audit.law import Count, Law
from experiments.audit.learned import learned_count
from experiments.audit.levels import Levels, percent
from experiments.audit.one_run import OneRunSetup, stated_mu
from experiments.audit.row import Row
from experiments.audit.sabotage import NONE
from experiments.audit.trials import (
    Trial,
    attacks_on,
    counted,
    epsilon_bounds,
    judge,
    many_run_trial,
    noted,
    stated_law,
)
from fedmf.accounting import gaussian_epsilon
from fedmf.audit.gaussian_bounds import f_dp_one_run_mu_lower_bound, mu_lower_bound
from fedmf.randomness import PublicSeed

DRAWS = 100_000  # in each direction, for the exact epsilon
FITTED = 10  # one in so many runs is used to fit the noise
LOWEST_NOISE, HIGHEST_NOISE = 1e-3, 1e2  # in units of the stated noise


def further_rows(setup: Setup, runs: Runs, trials: Sequence[Trial], levels: Levels) -> list[Row]:
    """Return the further rows of a pipeline that was played many times; `trials` are its headline ones."""
    rows = [learned_row(setup, runs, levels)]
    if setup.keep_probability == 1:
        return [*rows, mu_row(setup, runs, levels)]
    fitted = fitted_trial(setup, runs, levels)
    rows += [fitted.as_row(), *(beside_exact(setup, trial, levels) for trial in (*trials, fitted))]
    return rows if setup.sabotage != NONE else [*rows, exact_row(setup, levels)]


def attack_rows(setup: Setup) -> int:
    """Return how many rows of a pipeline that is played many times are attacks: the headline's and those here."""
    headline = len(attacks_on(setup))
    return headline + 2 if setup.keep_probability == 1 else headline + 2 + headline + 1


def learned_row(setup: Setup, runs: Runs, levels: Levels) -> Row:
    """Return the row of the learned attack."""
    stage = build_stage(replace(setup, sabotage=NONE))
    bound = epsilon_bounds(setup, levels).by_itself
    found = learned_count(stated_law(setup), runs, stage.steps, bound)
    trial = many_run_trial(setup, "many runs, learned", "half of the runs fit it", found, levels)
    return trial.as_row()


def fitted_trial(setup: Setup, runs: Runs, levels: Levels) -> Trial:
    """Return the attack whose law has the noise that a part of the runs shows; the others are counted."""
    part = max(2, len(runs.present) // FITTED // 2 * 2)
    law = with_fitted_noise(stated_law(setup), runs.part(slice(part)))
    bound = epsilon_bounds(setup, levels).by_itself
    _, found = counted(setup, law, runs.part(slice(part, None)), bound, "fitted noise")
    note = f"noise {law.noise:.3f} of the stated one in the first {part} runs"
    return many_run_trial(setup, "many runs, fitted noise", note, found, levels)


def with_fitted_noise(law: Law, runs: Runs) -> Law:
    """Return `law` with the noise of greatest likelihood."""
    kinds = [(present, runs.present == present) for present in (True, False)]

    def loss(log_noise: float) -> float:
        guess = replace(law, noise=math.exp(log_noise))
        return -sum(
            guess.log_likelihood(runs.observations[chosen], runs.canaries[chosen], present=present)
            for present, chosen in kinds
            if chosen.any()
        )

    found = minimize_scalar(loss, bounds=(math.log(LOWEST_NOISE), math.log(HIGHEST_NOISE)), method="bounded")
    return replace(law, noise=math.exp(float(found.x)))


def mu_row(setup: Setup, runs: Runs, levels: Levels) -> Row:
    """Return the row that tests the mu which a run without masks states: sqrt(E) over its noise multiplier."""
    bounds = levels.bounds(mu_lower_bound, levels.attack)
    _, found = counted(setup, stated_law(setup), runs, bounds.by_itself, "mu")
    plan = build_stage(replace(setup, sabotage=NONE)).plan
    limit = math.sqrt(plan.participation.epochs) / plan.noise_multiplier
    mu, decisive = found.bounded(bounds.by_itself), found.bounded(bounds.decides)
    return Row(
        pipeline=_name(setup),
        sabotage=setup.sabotage.name,
        test="many runs, mu-GDP",
        observed=f"{_mu_in_words(mu, setup.delta)} ({_claims(found)}; at {percent(levels.confidence)})",
        limit=f"mu {limit:.3f}",
        false_alarm=levels.attack,
        verdict=judge(decisive, limit, bounds.decides(found.members, found.members, 0, found.non_members)),
        note=noted("epsilon within the Gaussian family only", mu, decisive, limit),
    )


def exact_row(setup: Setup, levels: Levels) -> Row:
    """Return the row that holds the stated epsilon against the exact one of the law that the plan describes."""
    exact = exact_epsilon_of(replace(setup, sabotage=NONE), levels.part)
    return Row(
        pipeline=_name(setup),
        sabotage=setup.sabotage.name,
        test="exact epsilon",
        observed=f"epsilon {exact.estimate:.3f}, in [{exact.low:.3f}, {exact.high:.3f}]",
        limit=f"epsilon {setup.epsilon:g} at delta {setup.delta:g}",
        false_alarm=levels.part,
        verdict=judge(exact.low, setup.epsilon, math.inf),
        note="of the stated law, by simulation; no run is used" + _companions(setup),
    )


def beside_exact(setup: Setup, trial: Trial, levels: Levels) -> Row:
    """Return the row that holds an attack's bound against the exact epsilon of the stated law.

    All rows of a pipeline hang on one interval, whose error counts once, as the level of `exact_row`.
    """
    exact = exact_epsilon_of(replace(setup, sabotage=NONE), levels.part)
    return replace(
        trial.as_row(),
        test="many runs, exact epsilon",
        limit=f"epsilon {exact.high:.3f} at delta {setup.delta:g}",
        verdict=judge(trial.decisive, exact.high, trial.best),
        note=noted(
            f"{trial.attack}; the law is tested, not the statement",
            trial.lower_bound,
            trial.decisive,
            exact.high,
        ),
    )


def check_exact(setup: Setup, levels: Levels) -> None:
    """Raise `SettingError` where a pipeline's exact epsilon cannot be had at its delta, before a run of it is played."""
    if setup.keep_probability < 1:
        check_reach(setup.delta, draws=DRAWS, confidence=1 - levels.part)


@lru_cache(maxsize=16)
def exact_epsilon_of(setup: Setup, error: float) -> ExactEpsilon:
    """Return the exact epsilon of the law that a setup's pipeline follows as shipped, missed with probability `error`."""
    rng = PublicSeed(setup.seed).generator("audit exact epsilon", setup.name)
    return exact_epsilon(stated_law(setup), setup.delta, draws=DRAWS, confidence=1 - error, rng=rng)


def f_dp_row(setup: OneRunSetup, correct: int, levels: Levels) -> Row:
    """Return the row that tests the mu of a run whose clients are all canaries, of which `correct` were guessed."""
    bounds = levels.bounds(f_dp_one_run_mu_lower_bound, levels.attack)
    mu, decisive = (by(correct, setup.guesses, setup.canaries) for by in (bounds.by_itself, bounds.decides))
    limit = stated_mu(setup)
    return Row(
        pipeline=f"{setup.mechanism}, gamma 1",
        sabotage=setup.sabotage.name,
        test="one run, f-DP",
        observed=f"{_mu_in_words(mu, setup.delta)} ({correct}/{setup.guesses} right; at {percent(levels.confidence)})",
        limit=f"mu {limit:.3f}",
        false_alarm=levels.attack,
        verdict=judge(decisive, limit, bounds.decides(setup.guesses, setup.guesses, setup.canaries)),
        note=noted(
            f"{setup.canaries} canaries; epsilon within the Gaussian family only", mu, decisive, limit
        ),
    )


def _mu_in_words(mu: float, delta: float) -> str:
    epsilon = gaussian_epsilon(mu, delta) if mu else 0.0
    return f"mu at least {mu:.3f}, epsilon {epsilon:.3f} at delta {delta:g}"


def _claims(found: Count) -> str:
    return f"{found.true_positives}/{found.members} right, {found.false_positives}/{found.non_members} false"


def _name(setup: Setup) -> str:
    return f"{setup.mechanism}, gamma {setup.keep_probability:g}"


def _companions(setup: Setup) -> str:
    return ", companions speak" if setup.companions else ""
