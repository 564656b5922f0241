"""How good a model is: the loss that it is trained on, and its accuracy as the literature counts it."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from client.data.dataset import IGNORED_TARGET, Examples


@dataclass(frozen=True)
class Score:
    """`accuracy` in [0, 1] over `counted` targets, `loss` the mean cross-entropy in nats."""

    accuracy: float
    loss: float
    counted: int


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats over targets other than `IGNORED_TARGET`.

    One expression for both tasks: `logits` is [n, classes] with `targets` [n], or [n, length, vocabulary]
    with [n, length].
    """
    return nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORED_TARGET)


@torch.no_grad()
def score(
    model: nn.Module, examples: Examples, *, uncounted: tuple[int, ...] = (), batch_size: int = 256
) -> Score:
    """Return the score of `model` on `examples`, on the device that holds the model.

    Targets equal to `IGNORED_TARGET` count for nothing; those in `uncounted` (a data set's out-of-vocabulary
    and end-of-sentence tokens) count for the loss only. `batch_size` bounds the memory and changes no number
    but by rounding. Without any counted target the accuracy is nan, without any real one the loss is.
    """
    device = next(model.parameters()).device
    left_out = torch.tensor([IGNORED_TARGET, *uncounted], device=device)
    correct = counted = real = 0
    total = 0.0
    for start in range(0, len(examples), batch_size):
        x = torch.as_tensor(examples.x[start : start + batch_size], device=device)
        y = torch.as_tensor(examples.y[start : start + batch_size], device=device)
        logits = model(x)
        present = int((y != IGNORED_TARGET).sum())
        total += float(loss(logits, y)) * present if present else 0.0
        real += present
        chosen = ~torch.isin(y, left_out)
        correct += int((logits.argmax(-1) == y)[chosen].sum())
        counted += int(chosen.sum())
    nan = float("nan")
    return Score(correct / counted if counted else nan, total / real if real else nan, counted)
