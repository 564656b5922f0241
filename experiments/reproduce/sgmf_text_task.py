"""Next-word prediction for the experiments of Chen et al. 2024: sizes, public vocabulary, score, and what stands beside.

The text is Stack Exchange by user, a small stand-in for Stack Overflow. Its vocabulary is counted in public text only.
"""

import gzip
import hashlib
import json
import math
import platform
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import Tensor

from client.data.dataset import IGNORED_TARGET
from client.data.public_text import python_words
from client.data.reading import PARSERS_RAISE, brief
from client.data.text import SPECIAL
from client.losses import find_loss
from client.metrics import Metric, NamedMetric
from client.parameters import set_parameters
from client.scoring import score
from experiments.reproduce import sgmf_training as training
from experiments.reproduce.sgmf_training import DELTA, Size
from experiments.reproduce.study import Study
from experiments.reproduce.trials import Cell, Clock, Outcome, Trial, prepare, train
from experiments.reproduce.whole_run import COMMON, FILES, Task
from experiments.settings.experiment import Experiment
from fedmf.errors import DataError
from server.files import write_atomically

NAME = "sgmf_text"
RUNS = f"{NAME}.jsonl"
WORDS = f"{NAME}_words.txt"  # beside the runs, which hang on it
VOCABULARY = 4000
TEXTS = (
    "13e2811a1e6792157b3d9ae7c3ae4739685de74aff98b5f4d1250ab0f85fa382"  # digest of the unpacked file of texts
)
WORDS_DIGEST = (
    "21e320782b78b7e9b4ad29938ef692693b61bc27ce553d9bf0ab599173405e27"  # of the file in docs/results
)
CLIENT_RATE = 2.0

NO_NOISE = "no noise"
SAME_WORDS = "always the same five words"
SUGGESTED = 5  # words, one of which must be right

_COMMON = (
    *(setting for setting in COMMON if not setting.startswith("client.learning_rate=")),
    f"client.learning_rate={CLIENT_RATE}",
    f"privacy.delta={DELTA}",
    f"dataset.vocabulary_size={VOCABULARY}",
    "model=lstm",
)
_BY_USER = (*_COMMON, "dataset=by_user_text")
_POSTS = (
    "Stack Exchange by user: the unit of privacy is the user, of whom the first {} windows of 20 words train"
)
KEEPS = {NAME: (1.0, 0.01)}
SIZES = {
    "small": Size(
        Task("posts, lstm", f"{_POSTS.format(8)}; an LSTM of 128,435 parameters (embedding 15, hidden 24)",
             (*_BY_USER, "dataset.max_examples_per_user=8", "dataset.max_test_examples=1000", "client.batch_size=2",
              "model.embedding=15", "model.hidden=24"), start=0.45, tuning=1, needs_data=True),
        dimension=128435, cohort=25, rounds=40, epochs=2, keep_probabilities=KEEPS, epsilons=(64.0, 16.0), seeds=5, more=5,
        held_out=0.3,
    ),
    "laptop": Size(
        Task("posts, more of each", f"{_POSTS.format(8)}; an LSTM of 128,435 parameters (embedding 15, hidden 24)",
             (*_BY_USER, "dataset.max_examples_per_user=8", "client.batch_size=2",
              "model.embedding=15", "model.hidden=24"), start=0.45, tuning=1, needs_data=True),
        dimension=128435, cohort=40, rounds=40, epochs=2, keep_probabilities={NAME: (1.0, 0.1, 0.01)}, epsilons=(32.0, 8.0),
        seeds=5, more=5, held_out=0.3,
    ),
    "paper": Size(
        Task("stackoverflow, lstm", "Stack Overflow, 342,477 users, a vocabulary of 10,000; an LSTM of 4,053,428 parameters",
             (*(one for one in _COMMON if not one.startswith("dataset.vocabulary_size=")), "dataset=stackoverflow",
              "dataset.max_examples_per_user=256", "client.batch_size=16"), start=0.45, tuning=1, needs_data=True),
        dimension=4053428, cohort=1000, rounds=100, epochs=2, keep_probabilities={NAME: (1.0, 0.1, 0.01)}, epsilons=(8.0, 2.0),
        seeds=10, more=0, held_out=0.05,
    ),
}  # fmt: skip


def no_noise(size: Size) -> Cell:
    """Return the cell of runs without noise, clipped and tuned as all others: what privacy takes away is seen beside it."""
    task = size.task
    own = [one for one in task.overrides if not one.startswith("privacy.noise_multiplier=")]
    without = ("compression.keep_probability=1", "privacy.epsilon=null", "privacy.noise_multiplier=0")
    which = training.overrides(training.INDEPENDENT, size)
    return Cell(task.name, NO_NOISE, 1.0, 0.0, (*own, *without, *which), task.needs_data)


def same_words(size: Size) -> Trial:
    """Return the trial that trains nothing and always suggests the words that are most frequent in the training texts."""
    return Trial(replace(no_noise(size), mechanism=SAME_WORDS), 0.0, 0)


def study(size: Size, mechanisms: tuple[str, ...]) -> Study:
    """Return the work of the page: a chain for each mechanism, and one for runs without noise."""
    compared = training.study(size, size.keep_probabilities[NAME], mechanisms)
    return replace(compared, chains=((no_noise(size),), *compared.chains))


def check_texts(path: Path) -> None:
    """Raise `DataError` unless a file holds the texts of the page: results are kept by settings, not by data."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except PARSERS_RAISE as error:
        raise DataError(
            f"{path} cannot be read ({brief(error)}); data must be {NAME}'s texts by user, {FILES}."
        ) from error
    if digest != TEXTS:
        raise DataError(
            f"{path} holds other data than the texts by user of {NAME}.md, whose results would be mixed with its own; data must be the file {FILES}."
        )


def public_words(directory: Path) -> Path:
    """Return the file of the vocabulary in `directory`, which is made where neither it nor a run is there.

    Another Python has other documentation, hence other words, which is said. Raises `DataError` where runs are there without
    it: with other words they would be mixed.
    """
    path = directory / WORDS
    if path.exists():
        return path
    if (directory / RUNS).exists():
        raise DataError(
            f"{path}, the public vocabulary, does not exist; put back the file that the runs in {directory / RUNS} were made with."
        )
    write_atomically(path, "".join(f"{word}\n" for word in python_words(VOCABULARY)).encode())
    print(
        f"{path}: {VOCABULARY} words of the documentation of Python {platform.python_version()}",
        file=sys.stderr,
    )
    if hashlib.sha256(path.read_bytes()).hexdigest() != WORDS_DIGEST:
        print(
            f"warning: these are not the words of docs/results/{WORDS}, which came from Python 3.11.7: runs differ from those "
            "there. For the same ones put that file here and begin again.",
            file=sys.stderr,
        )
    return path


class KnownWords(Metric):
    """The share of known words among the five that a model suggests: those of the largest outputs; special tokens are no words."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._right = self._seen = 0

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Count the targets that are suggested."""
        suggested = outputs[:, SPECIAL:].topk(SUGGESTED, dim=-1).indices + SPECIAL
        self._right += int((suggested == targets[:, None]).any(-1).sum())
        self._seen += len(targets)

    def value(self) -> float:
        """Return the share, 0 without any target."""
        return self._right / self._seen if self._seen else 0.0


def play(trial: Trial, data: Path | None, vocabulary: Path) -> Outcome:
    """Return what came of a trial on the texts `data`, read with the public words of the file `vocabulary`.

    A trial on held-out users, which scores a rate, has their `likelihood` where others have the accuracy.
    """
    clock = Clock()
    path = f"dataset.vocabulary={json.dumps(str(vocabulary.absolute()))}"
    with_words = replace(trial, cell=replace(trial.cell, overrides=(*trial.cell.overrides, path)))
    if trial.cell.mechanism == SAME_WORDS:
        experiment, _ = prepare(replace(with_words, learning_rate=1.0), data)
        found: tuple[float, float | None] = frequencies_alone(experiment)
    else:
        experiment, secret = prepare(with_words, data)
        found = scored(experiment, train(experiment, secret))
        if trial.held_out:
            found = (likelihood(found[1]), found[1])
    return Outcome(*found, *clock.taken())


def likelihood(loss: float | None) -> float:
    """Return the geometric mean of the tokens' probabilities, by which rates are compared: runs far off differ in it, and not in accuracy.

    >>> likelihood(4.60517), likelihood(None)
    (0.0100000019, 0.0)
    """
    return 0.0 if loss is None else float(f"{math.exp(-loss):.9g}")


def scored(experiment: Experiment, model: np.ndarray) -> tuple[float, float | None]:
    """Return the share of known words that `model` suggests and its loss on the test texts; (0, None) if training diverged."""
    set_parameters(experiment.model, model)
    dataset = experiment.dataset
    found = score(
        experiment.model,
        dataset.test,
        loss=find_loss(experiment.training.loss),
        uncounted=dataset.uncounted,
        metrics=[NamedMetric("known words", KnownWords)],
    )
    if not np.isfinite(found.loss):
        return 0.0, None
    return round(found.metrics["known words"], 5), round(found.loss, 5)


def frequencies_alone(experiment: Experiment) -> tuple[float, float]:
    """Return the share of the test's known words among the most frequent ones of the training texts, and the loss of their frequencies.

    The loss is the cross-entropy of all training tokens' shares, each counted once more than it is there.
    """
    dataset = experiment.dataset
    counts = np.ones(dataset.classes, np.int64)
    for examples in dataset.clients:
        counts += np.bincount(_real(np.asarray(examples.y[:])), minlength=dataset.classes)
    test = _real(np.asarray(dataset.test.y[:]))
    loss = -float(np.log(counts[test] / counts.sum()).mean())
    of_words = counts.copy()
    of_words[:SPECIAL] = 0  # no suggestions
    best = np.argsort(-of_words, kind="stable")[:SUGGESTED]
    known = test[~np.isin(test, dataset.uncounted)]
    return round(float(np.isin(known, best).mean()), 5), round(loss, 5)


def _real(targets: np.ndarray) -> np.ndarray:
    """Return the targets that are no padding, flat."""
    return np.extract(targets != IGNORED_TARGET, targets)
