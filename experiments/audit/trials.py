"""Which pipelines are attacked under which laws, and the verdict on each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from experiments.audit.digits import Runs, Setup, build_stage, play
from experiments.audit.law import Float64, Law, choose_rule, count, own_mask, shared_mask
from experiments.audit.one_run import OneRunSetup, play_one_run
from experiments.audit.sabotage import HALF_NOISE, NONE, SHARED_MASK, Sabotage
from experiments.audit.work import Task
from fedmf.audit.bounds import one_run_lower_bound
from fedmf.randomness import PublicSeed

CHUNK = 50  # runs a process plays before it hands them back
ONE_RUN_WEIGHT = 600.0  # one run with all canaries takes about as long as this many runs with one


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
    the right ones. `lower_bound`, in nats, holds at `delta` with probability `confidence`.
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
    confidence: float

    @property
    def exceeds(self) -> bool:
        """Whether the pipeline was shown to cost more than stated."""
        return self.lower_bound > self.epsilon

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
        return "EXCEEDS the statement" if self.exceeds else "below the statement"


def many_run_setups(
    base: Setup, mechanisms: Sequence[str], keep_probabilities: Sequence[float]
) -> list[Setup]:
    """Return the pipelines to play many times: as shipped, and broken in each way that applies."""
    setups = []
    for mechanism in mechanisms:
        for keep_probability in keep_probabilities:
            setup = replace(base, mechanism=mechanism, keep_probability=keep_probability)
            setups += [setup, replace(setup, sabotage=HALF_NOISE)]
            if keep_probability < 1:  # there is no mask to share otherwise
                speaking = replace(setup, companions=True)
                setups += [speaking, replace(speaking, sabotage=SHARED_MASK)]
    return setups


def many_run_tasks(setup: Setup, runs: int) -> list[Task]:
    """Return the calls that play `runs` runs of a setup."""
    sizes = [(first, min(CHUNK, runs - first)) for first in range(0, runs, CHUNK)]
    return [Task(play, (setup, first, size), size) for first, size in sizes]


def joined(parts: Sequence[Runs]) -> Runs:
    """Return several parts' runs as one."""
    return Runs(
        np.concatenate([part.observations for part in parts]),
        np.concatenate([part.present for part in parts]),
    )


def attacks_on(setup: Setup) -> dict[str, Law]:
    """Return the laws under which a pipeline is attacked, by name.

    A broken pipeline is attacked under the law of its fault; one as shipped under the stated law and under
    those of all faults, so that no attack is stronger on a control than on an honest run for a reason of its
    own.
    """
    stage, gamma = build_stage(replace(setup, sabotage=NONE)), setup.keep_probability
    others = setup.cohort_size - 1 if setup.companions else 0
    stated = Law(*own_mask(gamma, others), stage.shifts, stage.coordinates)
    if setup.companions:
        kept_in, kept_out = shared_mask(gamma, others)
        fault = {"for a shared mask": replace(stated, kept_in=kept_in, kept_out=kept_out)}
    else:
        fault = {"for halved noise": replace(stated, noise=0.5)}
    return fault if setup.sabotage != NONE else {"for the stated law": stated, **fault}


def attack(setup: Setup, runs: Runs, confidence: float) -> list[tuple[Trial, Scores]]:
    """Return the trials of a pipeline's runs under all laws; each rule is fixed without a look at the runs."""
    trials = []
    for name, law in attacks_on(setup).items():
        rng = PublicSeed(setup.seed).generator("audit rule", setup.name, name)
        rule = choose_rule(law, runs=len(runs.present), delta=setup.delta, confidence=confidence, rng=rng)
        scores = law.score(runs.observations)
        found = count(rule, scores, runs.present)
        trial = Trial(
            method="many runs",
            mechanism=setup.mechanism,
            keep_probability=setup.keep_probability,
            sabotage=setup.sabotage,
            attack=name + (", companions speak" if setup.companions else ""),
            epsilon=setup.epsilon,
            delta=setup.delta,
            trials_in=found.members,
            hits=found.true_positives,
            trials_out=found.non_members,
            false_alarms=found.false_positives,
            lower_bound=found.bound(delta=setup.delta, confidence=confidence),
            confidence=confidence,
        )
        trials.append((trial, Scores(scores, runs.present)))
    return trials


def one_run_setups(base: OneRunSetup, mechanisms: Sequence[str]) -> list[OneRunSetup]:
    """Return the pipelines to play once with canaries only: as shipped, and with half the noise."""
    return [
        replace(base, mechanism=mechanism, sabotage=sabotage)
        for mechanism in mechanisms
        for sabotage in (NONE, HALF_NOISE)
    ]


def one_run_task(setup: OneRunSetup) -> Task:
    """Return the call that plays a setup."""
    return Task(play_one_run, (setup,), ONE_RUN_WEIGHT)


def one_run_trial(setup: OneRunSetup, correct: int, confidence: float) -> Trial:
    """Return the trial of a run whose clients are all canaries, of which `correct` guesses were right."""
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
        lower_bound=one_run_lower_bound(
            correct, setup.guesses, setup.canaries, delta=setup.delta, confidence=confidence
        ),
        confidence=confidence,
    )
