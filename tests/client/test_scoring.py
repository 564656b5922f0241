"""Scores against numbers worked out by hand."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from client.data import IGNORED_TARGET, Examples
from client.losses import cross_entropy as loss
from client.scoring import score


class Echo(nn.Module):
    """Returns its input as logits."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


LOGITS = np.log(np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.5, 0.25, 0.25]], dtype=np.float32))


@pytest.mark.parametrize("batch_size", [1, 2, 256])
def test_accuracy_and_loss_are_the_obvious_ones_whatever_the_batch_size(batch_size: int) -> None:
    got = score(Echo(), Examples(LOGITS, np.array([0, 1, 2])), batch_size=batch_size)
    assert (got.accuracy, got.counted) == (2 / 3, 3)
    assert got.loss == pytest.approx(-(math.log(0.7) + math.log(0.8) + math.log(0.25)) / 3, rel=1e-6)


def test_padding_counts_for_nothing_and_uncounted_tokens_for_the_loss_only() -> None:
    x = np.stack([LOGITS, LOGITS])
    y = np.array([[0, 1, IGNORED_TARGET], [1, 0, 0]])
    got = score(Echo(), Examples(x, y), uncounted=(0,))
    assert (got.accuracy, got.counted) == (1 / 2, 2)
    likelihoods = [0.7, 0.8, 0.2, 0.1, 0.5]
    assert got.loss == pytest.approx(-sum(map(math.log, likelihoods)) / 5, rel=1e-6)


def test_the_loss_is_the_same_expression_for_both_tasks() -> None:
    logits, targets = torch.tensor(LOGITS), torch.tensor([0, 1, 2])
    assert torch.equal(loss(logits, targets), loss(logits[None], targets[None]))


def test_nothing_to_count_is_not_a_number_rather_than_perfect() -> None:
    got = score(Echo(), Examples(LOGITS[None], np.full((1, 3), IGNORED_TARGET)))
    assert math.isnan(got.accuracy)
    assert math.isnan(got.loss)
