"""Whether a run learnt: its last score compared with the start and with the best constant answer, and what may help if not.

Where a run did not learn, its rates are rehearsed without noise: a few rounds of clients that are made of public rows, those of
the test split, one half to train on and the other to be scored on. Other rates are rehearsed too. One is named only where the
rehearsal with it learns.

This costs no privacy: it is computed from the settings, the model before training, the test split and the scores of released
models, all of them public. No training example and no client's update is read. Test examples are among what no statement
covers, and a rate that is chosen by a rehearsal is chosen by them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from client.data.dataset import (
    CLASSIFICATION,
    IGNORED_TARGET,
    MULTILABEL,
    NEXT_TOKEN,
    OF_NUMBERS,
    REGRESSION,
    Examples,
    pieces,
)
from client.metrics import find_metrics, headline
from client.rehearsal import global_generators_kept
from client.scoring import Score
from client.settings import TrainingSettings
from client.training import Trainer, usual_rate
from experiments.pages.wording import SHORT, text_of
from experiments.session.progress import View
from experiments.settings.experiment import Experiment
from experiments.settings.groups import OptimizerSettings
from experiments.settings.log import messages
from experiments.settings.schema import Settings
from experiments.settings.values import defaults
from fedmf.updates.vectors import Vector, clip_l2
from server.optimizer import Optimizer

ERRORS = 3.0  # an accuracy is above chance by so many standard errors
DIVERGED = 2.0  # times the loss before training
ROUNDS, CLIENTS = 20, 8  # of a rehearsal, at most
BATCHES = 2  # of a made-up client
MOST_SCORED = 1000  # public examples in a rehearsal
SHARES = (0.3, 0.1, 0.03, 0.01)  # of the run's client learning rate that are rehearsed
FEW_ROWS = 200  # on fewer public rows a rehearsal that does not learn tells little
LESS = (0.1, 0.3)  # of its server's rate, with which as much less noise comes into a step


@dataclass(frozen=True)
class Baseline:
    """What a run is compared with: the best constant answer to the test split, and the `loss` there before training.

    The best constant `answer` is the commonest target, which is right for the share `chance` of those that the accuracy counts;
    of multilabel the commonest value of each label, and of regression the mean, whose R2 is 0. `task` is that of the data.
    """

    answer: str
    chance: float
    loss: float
    task: str = CLASSIFICATION

    @classmethod
    def of(cls, experiment: Experiment) -> "Baseline | None":
        """Return the baseline of a run; None where targets are no classes of classification."""
        dataset = experiment.dataset
        if dataset.task not in OF_NUMBERS and dataset.test.y.dtype.kind == "f":
            return None
        start = scored_by(experiment.make_trainer(), experiment, experiment.initial, dataset.test)
        if dataset.task == REGRESSION:
            return cls("the mean of the test targets", 0.0, start.loss, dataset.task)
        if dataset.task == MULTILABEL:
            ones = np.asarray(dataset.test.y).mean(axis=0)
            chance = float(np.maximum(ones, 1 - ones).mean())
            return cls("each label's commonest value", chance, start.loss, dataset.task)
        left_out = [IGNORED_TARGET, *dataset.uncounted]
        found = np.sum(  # some: what has no target that counts is no dataset
            [
                np.bincount(part[~np.isin(part, left_out)], minlength=dataset.classes)
                for part in pieces(dataset.test.y)
            ],
            axis=0,
        )
        most, names = int(found.argmax()), dict(enumerate(dataset.labels))
        answer = f"{'token' if dataset.task == NEXT_TOKEN else 'class'} {names.get(most, most)!r}"
        return cls(answer, float(found.max() / found.sum()), start.loss)

    def is_beaten_by(self, scored: Score) -> bool:
        """Return whether a model learnt: a score above chance by more than sampling explains, and no loss far above the start.

        Models that are right more often than half-way from chance to always have learnt with any loss: they are only too sure.

        Answers that do not depend on the inputs have a correlation with m targets of about 1/sqrt(m), and an R2 of at most its square.
        """
        error = math.sqrt(self.chance * (1 - self.chance) / max(1, scored.counted))
        above = ERRORS**2 / max(1, scored.counted) if self.task == REGRESSION else ERRORS * error
        half_way = (1 - self.chance) / 2
        if scored.loss > DIVERGED * self.loss:
            above = half_way
        elif self.task == MULTILABEL:
            # Of rare labels no score could be more than the errors of its rows above chance.
            above = min(above, half_way)
        return score_of(scored) > self.chance + above and math.isfinite(scored.loss)


def scored_by(trainer: Trainer, experiment: Experiment, model: Vector, examples: Examples) -> Score:
    """Return the score of a model (d,) on public examples, by what its task is judged by."""
    dataset = experiment.dataset
    return trainer.score(
        model,
        examples,
        dataset.uncounted,
        find_metrics((), classes=dataset.classes, task=dataset.task),
    )


def score_of(scored: Score) -> float:
    """Return the value of what a model is judged by."""
    return scored.values[headline(scored.values)]


def learning(settings: Settings, experiment: Experiment, end: Score) -> dict[str, Any]:
    """Return `chance`, whether the run `learnt`, and the sentence `learning`, for a run whose last model has the score `end`."""
    if (base := Baseline.of(experiment)) is None:
        return {}
    name = headline(end.values)
    learnt, reached = base.is_beaten_by(end), f"{SHORT[name]} {text_of(name, score_of(end))}"
    better = f"better than always answering {base.answer} ({text_of(name, base.chance)})"
    loss = f"the loss {'fell' if end.loss < base.loss else 'rose'} from {base.loss:.4g} to {end.loss:.4g}"
    if learnt:
        sentence = f"Learnt: {reached}, {better}; {loss}{', which smaller rates may avoid' * (end.loss > base.loss)}."
    else:
        unclear = f"not clearly {better} with {end.counted} test examples;"
        found = unclear if score_of(end) > base.chance else f"no {better};"
        found = found if end.loss <= DIVERGED * base.loss else "training diverged,"
        sentence = f"NOT learnt: {reached}, {found} {loss}; {_advice(settings, experiment, base, name)}."
    return {"chance": base.chance, "learnt": learnt, "learning": sentence}


def _advice(settings: Settings, experiment: Experiment, base: Baseline, name: str) -> str:
    messages.info("this run did not learn: its learning rates are rehearsed on public rows, without noise")
    rounds = min(ROUNDS, experiment.plan.participation.rounds)
    rows = len(experiment.dataset.test) // 2  # the others score
    where = f"in {rounds} of {experiment.plan.participation.rounds} rounds on {rows:,} public rows"
    if own := rehearsed(
        "the same rates", experiment, base, experiment.training, experiment.optimizer, rounds
    ):
        reached = f"the same rates without noise and masks reach {text_of(name, own)} {where}"
        kept, sigma = experiment.plan.compression.keep_probability, experiment.plan.sigma
        hiding = ["there is too much noise"] * bool(sigma) + ["too little of an update is sent"] * (kept < 1)
        if not hiding:
            return f"{reached}: look at the clients' data"
        remedies = [] if sigma else ["compression.keep_probability=1"]
        for rate, optimizer in smaller_rates(settings, experiment.optimizer):
            if found := rehearsed(rate, experiment, base, experiment.training, optimizer, rounds):
                remedies.append(f"{rate}, which lets in less and reaches {text_of(name, found)} there")
                break
        return f"{reached}: {' and '.join(hiding)}" + f"; try {' or '.join(remedies)}" * bool(remedies)
    others = {
        rate: rehearsed(rate, experiment, base, training, optimizer, rounds)
        for rate, training, optimizer in other_rates(settings, experiment)
    }
    best = max(others, key=others.__getitem__)
    same = f"the same rates without noise and masks do no better {where}"
    if others[best]:
        return f"{same}, where {best} reaches {text_of(name, others[best])}: try {best}"
    few = " (so few rows may not show what all clients' data do)" * (rows < FEW_ROWS)
    return f"{same}, nor does {', '.join(others)}{few}: look at the model and the data, or train longer"


def shares_of(rate: float, shares: tuple[float, ...]) -> list[float]:
    """Return these shares of a rate, of two digits.

    >>> shares_of(0.3, (0.1, 0.3))
    [0.03, 0.09]
    """
    return [float(f"{share * rate:.2g}") for share in shares]


def smaller_rates(settings: Settings, optimizer: Optimizer) -> Iterator[tuple[str, Optimizer]]:
    """Yield smaller rates of the server, smallest first, as text and as optimizer; none of an optimizer of one's own."""
    if (own := getattr(settings.optimizer, "learning_rate", None)) is not None:
        for rate in shares_of(own, LESS):
            yield f"optimizer.learning_rate={rate:g}", replace(optimizer, learning_rate=rate)  # type: ignore[type-var]


def other_rates(
    settings: Settings, experiment: Experiment
) -> Iterator[tuple[str, TrainingSettings, Optimizer]]:
    """Yield what may learn better, each as text and as what trains: the defaults, and smaller rates of the clients."""
    training, optimizer = experiment.training, experiment.optimizer
    usual = usual_rate(experiment.model, experiment.dataset.task)
    given = training.learning_rate or usual
    for rate in sorted({usual, *shares_of(given, SHARES)} - {given}, reverse=True):
        yield f"client.learning_rate={rate:g}", replace(training, learning_rate=rate), optimizer
    if (own := getattr(settings.optimizer, "learning_rate", None)) is not None:
        usual = defaults(OptimizerSettings.options[settings.optimizer.name].settings)["learning_rate"]
        if usual != own:
            yield f"optimizer.learning_rate={usual:g}", training, replace(optimizer, learning_rate=usual)  # type: ignore[type-var]


def rehearsed(
    rate: str,
    experiment: Experiment,
    base: Baseline,
    training: TrainingSettings,
    optimizer: Optimizer,
    rounds: int,
) -> float:
    """Return the score after `rounds` on public rows without noise, masks and rotation; 0 where nothing is learnt, or they fail.

    `rate` is what is rehearsed, in words, for the progress shown.
    """
    test, order = experiment.dataset.test, np.random.default_rng(0)
    tested, rows = np.array_split(order.permutation(len(test)), 2)
    try:
        view = View(rounds, f"trying {rate}")
        with global_generators_kept(), np.errstate(all="ignore"), view.display:
            trainer = Trainer(experiment.model, training, experiment.dataset.task)
            model = _trained(experiment, trainer, optimizer, rows, order, rounds, view)
            scored = Examples(test.x[tested[:MOST_SCORED]], test.y[tested[:MOST_SCORED]])
            found = scored_by(trainer, experiment, model, scored)
    except (Exception, SystemExit):
        return 0.0
    return score_of(found) if base.is_beaten_by(found) else 0.0


def _trained(
    experiment: Experiment,
    trainer: Trainer,
    optimizer: Optimizer,
    rows: np.ndarray,
    order: np.random.Generator,
    rounds: int,
    view: View,
) -> Vector:
    """Return the model (d,) after `rounds` of made-up clients, with examples drawn from `rows` of the test split."""
    public, bound = experiment.dataset.test, experiment.plan.bounds.l2_norm
    clients = min(CLIENTS, experiment.plan.participation.cohort_size)
    size = min(len(rows), clients * BATCHES * experiment.training.batch_size)
    model, slots = experiment.initial, optimizer.init(experiment.initial)
    for number in range(rounds):
        total = np.zeros_like(model)
        for chosen in np.array_split(order.choice(rows, size, replace=False), clients):
            update = trainer.update(model, public.x[chosen], public.y[chosen], order=order)
            if np.isfinite(update).all():  # another one counts as zero, as in a run
                total += update if bound is None else clip_l2(update, bound)
        model, slots = optimizer.update(total / np.float32(clients), slots, model, number / rounds)
        view.show(number + 1, f"round {number + 1}/{rounds}")
    return model
