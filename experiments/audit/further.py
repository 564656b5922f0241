"""Rows that use the runs of the headline rows in other ways; each says at what level it errs by itself.

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
from functools import lru_cache, partial

from scipy.optimize import minimize_scalar

from experiments.audit.digits import Runs, Setup, build_stage
from experiments.audit.exact import ExactEpsilon, exact_epsilon
from experiments.audit.law import Count, Law, choose_rule, count
from experiments.audit.learned import learned_count
from experiments.audit.one_run import OneRunSetup, stated_mu
from experiments.audit.row import Row
from experiments.audit.sabotage import NONE
from experiments.audit.trials import Trial, judge, many_run_trial, stated_law
from fedmf.accounting import gaussian_epsilon
from fedmf.audit.bounds import epsilon_lower_bound
from fedmf.audit.gaussian_bounds import f_dp_one_run_mu_lower_bound, mu_lower_bound
from fedmf.randomness import PublicSeed

DRAWS = 100_000  # in each direction, for the exact epsilon
EXACT_ERROR = 0.005  # of the interval of the exact epsilon
FITTED = 10  # one in so many runs is used to fit the noise
LOWEST_NOISE, HIGHEST_NOISE = 1e-3, 1e2  # in units of the stated noise


def further_rows(setup: Setup, runs: Runs, trials: Sequence[Trial], confidence: float) -> list[Row]:
    """Return the further rows of a pipeline that was played many times; `trials` are its headline ones."""
    rows = [learned_row(setup, runs, confidence)]
    if setup.keep_probability == 1:
        return [*rows, mu_row(setup, runs, confidence)]
    fitted = fitted_trial(setup, runs, confidence)
    rows += [fitted.as_row(), *(beside_exact(setup, trial) for trial in (*trials, fitted))]
    return rows if setup.sabotage != NONE else [*rows, exact_row(setup)]


def learned_row(setup: Setup, runs: Runs, confidence: float) -> Row:
    """Return the row of the learned attack."""
    bound = partial(epsilon_lower_bound, delta=setup.delta, confidence=confidence)
    stage = build_stage(replace(setup, sabotage=NONE))
    found = learned_count(stated_law(setup), runs, stage.steps, bound)
    trial = many_run_trial(setup, "many runs, learned", "half of the runs fit it", found, confidence)
    return trial.as_row()


def fitted_trial(setup: Setup, runs: Runs, confidence: float) -> Trial:
    """Return the attack whose law has the noise that a part of the runs shows; the others are counted."""
    part = max(2, len(runs.present) // FITTED // 2 * 2)
    law = with_fitted_noise(stated_law(setup), runs.part(slice(part)))
    counted = runs.part(slice(part, None))
    bound = partial(epsilon_lower_bound, delta=setup.delta, confidence=confidence)
    rng = PublicSeed(setup.seed).generator("audit rule", setup.name, "fitted noise")
    rule = choose_rule(law, runs=len(counted.present), bound=bound, rng=rng)
    found = count(rule, law.score(counted.observations, counted.canaries), counted.present)
    note = f"noise {law.noise:.3f} of the stated one in the first {part} runs"
    return many_run_trial(setup, "many runs, fitted noise", note, found, confidence)


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


def mu_row(setup: Setup, runs: Runs, confidence: float) -> Row:
    """Return the row that tests the mu which a run without masks states: sqrt(E) over its noise multiplier."""
    bound = partial(mu_lower_bound, confidence=confidence)
    law = stated_law(setup)
    rng = PublicSeed(setup.seed).generator("audit rule", setup.name, "mu")
    rule = choose_rule(law, runs=len(runs.present), bound=bound, rng=rng)
    found = count(rule, law.score(runs.observations, runs.canaries), runs.present)
    plan = build_stage(replace(setup, sabotage=NONE)).plan
    limit = math.sqrt(plan.participation.epochs) / plan.noise_multiplier
    mu = found.bounded(bound)
    return Row(
        pipeline=_name(setup),
        sabotage=setup.sabotage.name,
        test="many runs, mu-GDP",
        observed=f"{_mu_in_words(mu, setup.delta)} ({_claims(found)})",
        limit=f"mu {limit:.3f}",
        false_alarm=1 - confidence,
        verdict=judge(mu, limit, bound(found.members, found.members, 0, found.non_members)),
        note="epsilon within the Gaussian family only",
    )


def exact_row(setup: Setup) -> Row:
    """Return the row that holds the stated epsilon against the exact one of the law that the plan describes."""
    exact = exact_epsilon_of(replace(setup, sabotage=NONE))
    return Row(
        pipeline=_name(setup),
        sabotage=setup.sabotage.name,
        test="exact epsilon",
        observed=f"epsilon {exact.estimate:.3f}, in [{exact.low:.3f}, {exact.high:.3f}]",
        limit=f"epsilon {setup.epsilon:g} at delta {setup.delta:g}",
        false_alarm=EXACT_ERROR,
        verdict=judge(exact.low, setup.epsilon, math.inf),
        note="of the stated law, by simulation; no run is used" + _companions(setup),
    )


def beside_exact(setup: Setup, trial: Trial) -> Row:
    """Return the row that holds an attack's bound against the exact epsilon of the stated law."""
    exact = exact_epsilon_of(replace(setup, sabotage=NONE))
    return replace(
        trial.as_row(),
        test="many runs, exact epsilon",
        limit=f"epsilon {exact.high:.3f} at delta {setup.delta:g}",
        false_alarm=1 - trial.confidence + EXACT_ERROR,
        verdict=judge(trial.lower_bound, exact.high, trial.best),
        note=trial.attack + "; the law is tested, not the statement",
    )


@lru_cache(maxsize=16)
def exact_epsilon_of(setup: Setup) -> ExactEpsilon:
    """Return the exact epsilon of the law that a setup's pipeline follows as shipped."""
    rng = PublicSeed(setup.seed).generator("audit exact epsilon", setup.name)
    return exact_epsilon(stated_law(setup), setup.delta, draws=DRAWS, confidence=1 - EXACT_ERROR, rng=rng)


def f_dp_row(setup: OneRunSetup, correct: int, confidence: float) -> Row:
    """Return the row that tests the mu of a run whose clients are all canaries, of which `correct` were guessed."""
    bound = partial(f_dp_one_run_mu_lower_bound, confidence=confidence)
    mu, limit = bound(correct, setup.guesses, setup.canaries), stated_mu(setup)
    return Row(
        pipeline=f"{setup.mechanism}, gamma 1",
        sabotage=setup.sabotage.name,
        test="one run, f-DP",
        observed=f"{_mu_in_words(mu, setup.delta)} ({correct}/{setup.guesses} right)",
        limit=f"mu {limit:.3f}",
        false_alarm=1 - confidence,
        verdict=judge(mu, limit, bound(setup.guesses, setup.guesses, setup.canaries)),
        note=f"{setup.canaries} canaries; epsilon within the Gaussian family only",
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
