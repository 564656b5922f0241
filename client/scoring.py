"""How good a model is: the loss that it is trained on, and its accuracy as the literature counts it."""

from dataclasses import dataclass

import torch
from torch import nn

from client.data.dataset import IGNORED_TARGET, Examples
from client.losses import Loss, counted, cross_entropy


@dataclass(frozen=True)
class Score:
    """`accuracy` in [0, 1] over `counted` targets, `loss` the mean of the loss that is trained, in nats for cross-entropy."""

    accuracy: float
    loss: float
    counted: int


@torch.no_grad()
def score(
    model: nn.Module,
    examples: Examples,
    *,
    loss: Loss = cross_entropy,
    uncounted: tuple[int, ...] = (),
    batch_size: int = 256,
) -> Score:
    """Return the score of `model` on `examples`, on the device that holds the model.

    Targets equal to `IGNORED_TARGET` count for nothing; those in `uncounted` (a data set's out-of-vocabulary
    and end-of-sentence tokens) count for the loss only. `batch_size` bounds the memory and changes no number
    but by rounding. Without any counted target the accuracy is nan, without any real one the loss is.
    """
    device = next(model.parameters()).device
    left_out = torch.tensor([IGNORED_TARGET, *uncounted], device=device)
    correct = chosen_targets = real = 0
    total = 0.0
    for start in range(0, len(examples), batch_size):
        x = torch.as_tensor(examples.x[start : start + batch_size], device=device)
        y = torch.as_tensor(examples.y[start : start + batch_size], device=device)
        logits = model(x)
        present = counted(y)
        total += float(loss(logits, y)) * present if present else 0.0
        real += present
        chosen = ~torch.isin(y, left_out)
        correct += int((logits.argmax(-1) == y)[chosen].sum())
        chosen_targets += int(chosen.sum())
    nan = float("nan")
    return Score(
        correct / chosen_targets if chosen_targets else nan, total / real if real else nan, chosen_targets
    )
