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
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from client.data import Examples
from client.data.dataset import IGNORED_TARGET, pieces
from client.parameters import set_parameters
from client.rehearsal import global_generators_kept
from client.scoring import Score, find_loss, score
from client.training import Trainer, pick_device
from experiments.pages.wording import text_of
from experiments.settings.data import CLIENT_RATE, CLIENT_RATES
from experiments.settings.experiment import Experiment
from experiments.settings.groups import OptimizerSettings
from experiments.settings.log import messages
from experiments.settings.schema import Settings
from experiments.settings.values import defaults
from fedmf.checks import counted
from fedmf.updates.vectors import Vector, clip_l2
from server.optimizer import Optimizer

ERRORS = 3.0  # an accuracy is above chance by so many standard errors
DIVERGED = 10.0  # times the loss before training
ROUNDS, CLIENTS = 20, 8  # of a rehearsal, at most
BATCHES = 2  # of a made-up client
MOST_SCORED = 1000  # public examples in a rehearsal
SHARES = (0.3, 0.1, 0.03, 0.01)  # of the run's client learning rate that are rehearsed
CLIENT, SERVER = "client.learning_rate", "optimizer.learning_rate"


@dataclass(frozen=True)
class Baseline:
    """What a run is compared with: the best constant answer to the test split, and the `loss` there before training.

    The best constant answer is the `commonest` target, which is right for the share `chance` of those that the accuracy counts.
    """

    commonest: int
    chance: float
    loss: float

    @classmethod
    def of(cls, experiment: Experiment) -> "Baseline | None":
        """Return the baseline of a run; None without targets that count, or where targets are no classes."""
        dataset = experiment.dataset
        if dataset.test.y.dtype.kind == "f":
            return None
        left_out = [IGNORED_TARGET, *dataset.uncounted]
        found = np.zeros(dataset.classes, np.int64)
        for part in pieces(dataset.test.y):
            found += np.bincount(part[~np.isin(part, left_out)], minlength=dataset.classes)
        if not found.any():
            return None
        start = _score(experiment, experiment.initial, dataset.test)
        return cls(int(found.argmax()), float(found.max() / found.sum()), start.loss)

    def is_diverged(self, scored: Score) -> bool:
        """Return whether a loss is far above that before training."""
        return not scored.loss <= DIVERGED * self.loss

    def is_beaten_by(self, scored: Score) -> bool:
        """Return whether a model learnt: an accuracy above chance by more than sampling explains, and no diverged loss."""
        error = math.sqrt(self.chance * (1 - self.chance) / max(1, scored.counted))
        return scored.accuracy > self.chance + ERRORS * error and not self.is_diverged(scored)


def learning(settings: Settings, experiment: Experiment, end: Score) -> dict[str, Any]:
    """Return `chance`, whether the run `learnt`, and the sentence `learning`, for a run whose last model has the score `end`."""
    if (base := Baseline.of(experiment)) is None:
        return {}
    learnt, accuracy = base.is_beaten_by(end), text_of("accuracy", end.accuracy)
    constant = f"always answering class {base.commonest} ({text_of('accuracy', base.chance)})"
    loss = f"the loss {'fell' if end.loss < base.loss else 'rose'} from {base.loss:.4g} to {end.loss:.4g}"
    if learnt:
        sentence = f"Learnt: accuracy {accuracy}, better than {constant}; {loss}."
    else:
        found = (
            f"training diverged with accuracy {accuracy}"
            if base.is_diverged(end)
            else f"accuracy {accuracy}, no better than {constant}"
        )
        sentence = f"NOT learnt: {found}; {loss}; {_advice(settings, experiment, base)}."
    return {"chance": base.chance, "learnt": learnt, "learning": sentence}


def _advice(settings: Settings, experiment: Experiment, base: Baseline) -> str:
    """Return what rehearsals tell of the run's rates and of others."""
    messages.info("this run did not learn: its learning rates are rehearsed on public rows, without noise")
    rounds = min(ROUNDS, experiment.plan.participation.rounds)
    where = f"in {counted(rounds, 'round')} on public rows"
    own = rehearsed(experiment, base, rounds)
    if own is not None:
        why = "there is too much noise for it" if experiment.plan.sigma else "look at the clients' data"
        return f"the same rates without noise reach {text_of('accuracy', own)} {where}: {why}"
    tried, best, remedy = [], 0.0, ""
    for key, rate in other_rates(settings):
        tried.append(f"{key}={rate:g}")
        accuracy = rehearsed(experiment, base, rounds, key, rate)
        if accuracy is not None and accuracy > best:
            best, remedy = accuracy, tried[-1]
    without_noise = f"the same rates without noise do no better {where}"
    if remedy:
        return f"{without_noise}, where {remedy} reaches {text_of('accuracy', best)}: try {remedy}"
    return f"{without_noise}, nor does {' or '.join(tried)}: look at the model and the data, or train longer"


def other_rates(settings: Settings) -> Iterator[tuple[str, float]]:
    """Yield the learning rates that may do better, as keys and values: smaller ones, and the defaults."""
    own = settings.client.learning_rate
    usual = CLIENT_RATES.get(settings.model.name, CLIENT_RATE)
    for rate in dict.fromkeys((usual, *(float(f"{share * own:.2g}") for share in SHARES))):
        if rate != own:
            yield CLIENT, rate
    option = OptimizerSettings.options.get(settings.optimizer.name)
    default = defaults(option.settings).get("learning_rate") if option else None
    if default not in (None, getattr(settings.optimizer, "learning_rate", None)):
        yield SERVER, float(default)


def rehearsed(
    experiment: Experiment, base: Baseline, rounds: int, key: str = "", rate: float = 0.0
) -> float | None:
    """Return the accuracy after a rehearsal without noise, masks and rotation, with another rate where `key` names it.

    None where nothing is learnt, see `Baseline.is_beaten_by`, and where the rehearsal fails.
    """
    training, optimizer = experiment.training, experiment.optimizer
    if key == CLIENT:
        training = replace(training, learning_rate=rate)
    elif key == SERVER:
        optimizer = replace(optimizer, learning_rate=rate)  # type: ignore[type-var]
    test, order = experiment.dataset.test, np.random.default_rng(0)
    scored, trained = np.array_split(order.permutation(len(test)), 2)
    scored = np.sort(scored[:MOST_SCORED])
    try:
        with global_generators_kept(), np.errstate(all="ignore"):
            model = _trained(
                experiment, Trainer(experiment.model, training), optimizer, trained, order, rounds
            )
            found = _score(experiment, model, Examples(test.x[scored], test.y[scored]))
    except (Exception, SystemExit):
        return None
    return found.accuracy if base.is_beaten_by(found) else None


def _trained(
    experiment: Experiment,
    trainer: Trainer,
    optimizer: Optimizer,
    rows: np.ndarray,
    order: np.random.Generator,
    rounds: int,
) -> Vector:
    """Return the model (d,) after `rounds` of made-up clients, whose examples are drawn from the `rows` of the test split."""
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
    return model


def _score(experiment: Experiment, vector: Vector, examples: Examples) -> Score:
    """Return the score of the model with the parameters `vector` (d,) on public examples."""
    model = deepcopy(experiment.model).eval()
    set_parameters(model, vector)
    loss = find_loss(experiment.training.loss)
    return score(
        model.to(pick_device(experiment.training.device)),
        examples,
        loss=loss,
        uncounted=experiment.dataset.uncounted,
    )
