"""Which pipelines are attacked under which laws, and the verdict on each: the headline rows.

A rule is fixed before any run is seen, all runs are counted, and Clopper and Pearson's bounds assume nothing about the
mechanism. Rows that use the same runs in other ways: `experiments.audit.further`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from experiments.audit.digits import Runs, Setup, build_stage, play
from experiments.audit.law import Bound, Count, Float64, Law, choose_rule, count, own_mask, shared_mask
from experiments.audit.levels import Bounds, Levels, percent
from experiments.audit.one_run import OneRunSetup, play_one_run
from experiments.audit.row import Row, Verdict
from experiments.audit.sabotage import HALF_NOISE, NONE, SHARED_MASK, Sabotage
from experiments.audit.work import Task
from fedmf.audit.bounds import epsilon_lower_bound, one_run_lower_bound
from fedmf.errors import SettingError
from fedmf.randomness import PublicSeed

CHUNK = 50  # runs a process plays before it hands them back
ONE_RUN_WEIGHT = 350.0  # one run with all canaries takes about as long as this many runs with one
NARROW = "above the limit by itself, not at the level of all attacks together; another seed decides"


@dataclass(frozen=True)
class Scores:
    """Log-likelihood ratios (runs,) of one attack and the coins (runs,) it was to guess."""

    scores: Float64
    present: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Trial:
    """One attack on one pipeline and what follows from it.

    `trials_in`, `trials_out` are runs of the two kinds, `hits` the claims that were right among the first,
    `false_alarms` those that were wrong among the second; with one run, `trials_in` are guesses and `hits`
    the right ones. `lower_bound`, in nats, holds at `delta` with probability `confidence` by itself: the headline.
    `decisive` holds with the share that the attack has of the level of all attacks together (`level`), and decides; `best`
    is what that one would have been had every claim been right.
    """

    method: str
    mechanism: str
    keep_probability: float
    sabotage: Sabotage
    attack: str
    epsilon: float
    delta: float
    trials_in: int
    hits: int
    trials_out: int | None
    false_alarms: int | None
    lower_bound: float
    decisive: float
    best: float
    confidence: float
    level: float

    @property
    def exceeds(self) -> bool:
        """Whether the pipeline was shown to cost more than stated, at the level of all attacks together."""
        return self.decisive > self.epsilon

    @property
    def is_control(self) -> bool:
        """Whether the pipeline was broken on purpose, so that the audit must catch it."""
        return self.sabotage != NONE

    @property
    def is_right(self) -> bool:
        """Whether the outcome is as it must be: a control caught, an honest pipeline not."""
        return self.exceeds == self.is_control

    @property
    def verdict(self) -> str:
        """The outcome in words; capitals where it is not as it must be."""
        if self.is_control:
            return "caught" if self.exceeds else "NOT CAUGHT"
        if self.exceeds:
            return "EXCEEDS the statement"
        return "above by itself only" if self.lower_bound > self.epsilon else "below the statement"

    def as_row(self) -> Row:
        """Return the trial as a row of the audit."""
        claims = f"{self.hits}/{self.trials_in} right"
        if self.trials_out is not None:
            claims += f", {self.false_alarms}/{self.trials_out} false"
        return Row(
            pipeline=f"{self.mechanism}, gamma {self.keep_probability:g}",
            sabotage=self.sabotage.name,
            test=self.method,
            observed=f"epsilon at least {self.lower_bound:.3f} ({claims}; at {percent(self.confidence)})",
            limit=f"epsilon {self.epsilon:g} at delta {self.delta:g}",
            false_alarm=self.level,
            verdict=judge(self.decisive, self.epsilon, self.best),
            note=noted(self.attack, self.lower_bound, self.decisive, self.epsilon),
        )


def judge(decisive: float, limit: float, best: float) -> Verdict:
    """Return what the bound that decides says of a limit; `best` is that of a test without mistakes."""
    if decisive > limit:
        return Verdict.refuted
    return Verdict.inconclusive if best <= limit else Verdict.nothing_found


def noted(note: str, bound: float, decisive: float, limit: float) -> str:
    """Return the note of a row, which says so where only the bound by itself exceeds the limit."""
    return f"{note}; {NARROW}" if bound > limit >= decisive else note


def many_run_setups(
    base: Setup, mechanisms: Sequence[str], keep_probabilities: Sequence[float]
) -> list[Setup]:
    """Return the pipelines to play many times, as shipped."""
    setups = []
    for mechanism in mechanisms:
        for keep_probability in keep_probabilities:
            setup = replace(base, mechanism=mechanism, keep_probability=keep_probability)
            setups.append(setup)
            if keep_probability < 1:  # there is no mask to share otherwise
                setups.append(replace(setup, companions=True))
    return setups


def many_run_tasks(setup: Setup, runs: int) -> list[Task]:
    """Return the calls that play `runs` runs of a setup, in pairs. Raises `SettingError` if `runs` is odd."""
    if runs % 2:
        raise SettingError(f"runs is {runs}; it must be even, each canary in as many runs in as out.")
    sizes = [(first, min(CHUNK, runs - first)) for first in range(0, runs, CHUNK)]
    return [Task(play, (setup, first, size), size) for first, size in sizes]


def joined(parts: Sequence[Runs]) -> Runs:
    """Return several parts' runs as one."""
    return Runs(
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("observations", "sums", "canaries", "present")
        )
    )


def stated_law(setup: Setup) -> Law:
    """Return the law that the setup's pipeline follows as shipped."""
    stage = build_stage(replace(setup, sabotage=NONE))
    return Law(*own_mask(setup.keep_probability, speaking(setup)), stage.shifts, stage.coordinates)


def attacks_on(setup: Setup) -> dict[str, Law]:
    """Return the laws under which a pipeline is attacked, by name.

    With halved noise or a shared mask a pipeline is attacked under the law of its fault; one as shipped under the
    stated law and under those, so that no attack is stronger on a control than on an honest run for a reason of its
    own. Of what is broken in other ways the attacker knows nothing, and assumes the stated law.
    """
    stated = stated_law(setup)
    if setup.companions:
        kept_in, kept_out = shared_mask(setup.keep_probability, speaking(setup))
        fault = {"for a shared mask": replace(stated, kept_in=kept_in, kept_out=kept_out)}
    else:
        fault = {"for halved noise": replace(stated, noise=0.5)}
    if setup.sabotage == NONE:
        return {"for the stated law": stated, **fault}
    return fault if setup.sabotage in (HALF_NOISE, SHARED_MASK) else {"for the stated law": stated}


def speaking(setup: Setup) -> int:
    """Return how many companions send the canary's vector."""
    return setup.cohort_size - 1 if setup.companions else 0


def attack(setup: Setup, runs: Runs, levels: Levels) -> list[tuple[Trial, Scores]]:
    """Return the trials of a pipeline's runs under all laws; each rule is fixed without a look at the runs."""
    trials = []
    bound = epsilon_bounds(setup, levels).by_itself
    for name, law in attacks_on(setup).items():
        scores, found = counted(setup, law, runs, bound, name)
        trials.append((many_run_trial(setup, "many runs", name, found, levels), Scores(scores, runs.present)))
    return trials


def counted(setup: Setup, law: Law, runs: Runs, bound: Bound, name: str) -> tuple[Float64, Count]:
    """Return the scores of runs under a law, and how its rule does on them; `name` is that of the rule's own draws."""
    rng = PublicSeed(setup.seed).generator("audit rule", setup.name, name)
    rule = choose_rule(law, runs=len(runs.present), bound=bound, rng=rng)
    scores = law.score(runs.observations, runs.canaries)
    return scores, count(rule, scores, runs.present)


def epsilon_bounds(setup: Setup, levels: Levels) -> Bounds:
    """Return the bound on epsilon that attacks on many runs of a setup give."""
    return levels.bounds(partial(epsilon_lower_bound, delta=setup.delta), levels.attack)


def many_run_trial(setup: Setup, method: str, attack: str, found: Count, levels: Levels) -> Trial:
    """Return what follows from the counted claims about runs of a setup."""
    bounds = epsilon_bounds(setup, levels)
    return Trial(
        method=method,
        mechanism=setup.mechanism,
        keep_probability=setup.keep_probability,
        sabotage=setup.sabotage,
        attack=attack + (", companions speak" if setup.companions else ""),
        epsilon=setup.epsilon,
        delta=setup.delta,
        trials_in=found.members,
        hits=found.true_positives,
        trials_out=found.non_members,
        false_alarms=found.false_positives,
        lower_bound=found.bounded(bounds.by_itself),
        decisive=found.bounded(bounds.decides),
        best=bounds.decides(found.members, found.members, 0, found.non_members),
        confidence=levels.confidence,
        level=levels.attack,
    )


def one_run_task(setup: OneRunSetup) -> Task:
    """Return the call that plays a setup."""
    return Task(play_one_run, (setup,), ONE_RUN_WEIGHT)


def one_run_trial(setup: OneRunSetup, correct: int, levels: Levels) -> Trial:
    """Return the trial of a run whose clients are all canaries, of which `correct` guesses were right."""
    bounds = levels.bounds(partial(one_run_lower_bound, delta=setup.delta), levels.one_run)
    return Trial(
        method="one run",
        mechanism=setup.mechanism,
        keep_probability=1.0,
        sabotage=setup.sabotage,
        attack=f"{setup.guesses} guesses of {setup.canaries} canaries",
        epsilon=setup.epsilon,
        delta=setup.delta,
        trials_in=setup.guesses,
        hits=correct,
        trials_out=None,
        false_alarms=None,
        lower_bound=bounds.by_itself(correct, setup.guesses, setup.canaries),
        decisive=bounds.decides(correct, setup.guesses, setup.canaries),
        best=bounds.decides(setup.guesses, setup.guesses, setup.canaries),
        confidence=levels.confidence,
        level=levels.one_run,
    )
