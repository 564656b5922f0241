"""Next-word prediction: the score of suggested words, and what the frequencies of words alone would give."""

from dataclasses import replace

import numpy as np
from torch import Tensor

from client.data import Dataset
from client.data.dataset import IGNORED_TARGET
from client.data.text import SPECIAL
from client.metrics import Metric
from experiments.reproduce.study import Task, Trial

WORDS = "docs/results/sgmf_text_words.txt"  # the public vocabulary
SAME_WORDS = "always the same five words"
SUGGESTED = 5  # words, one of which must be right


class KnownWords(Metric):
    """The share of known words among the five that a model suggests, 0 without any target; special tokens are not words."""

    def __init__(self) -> None:
        self._right = self._seen = 0

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        suggested = outputs[:, SPECIAL:].topk(SUGGESTED, dim=-1).indices + SPECIAL
        self._right += int((suggested == targets[:, None]).any(-1).sum())
        self._seen += len(targets)

    def value(self) -> float:
        return self._right / self._seen if self._seen else 0.0


def same_words(task: Task) -> Trial:
    """Return the trial that trains nothing and always suggests the most frequent words of the training texts."""
    assert task.no_noise is not None
    return Trial(replace(task.no_noise, mechanism=SAME_WORDS), 0.0, 0)


def frequencies_alone(dataset: Dataset) -> tuple[float, float]:
    """Return the share of the test's known words among the most frequent ones, and the loss of all tokens' frequencies.

    The loss is the cross-entropy of all training tokens' shares, each counted once more than it is there.
    """
    counts, test = np.ones(dataset.classes, np.int64), dataset.test.y[:]
    for examples in dataset.clients:
        counts += np.bincount(examples.y[examples.y != IGNORED_TARGET], minlength=dataset.classes)
    test = test[test != IGNORED_TARGET]
    loss = -float(np.log(counts[test] / counts.sum()).mean())
    best = SPECIAL + np.argsort(-counts[SPECIAL:], kind="stable")[:SUGGESTED]
    known = test[~np.isin(test, dataset.uncounted)]
    return round(float(np.isin(known, best).mean()), 5), round(loss, 5)
