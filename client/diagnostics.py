"""What one client's turn looked like: the norm of its update before clipping, and its loss. For simulations alone.

No noise covers any of it, and nothing of it leaves a client of a deployment. A turn is observed after it, on a copy of the
model: what the client sends is the same bits with and without.
"""

from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from client.data.dataset import Examples
from client.parameters import set_parameters
from client.rehearsal import global_generators_kept
from client.scoring import find_loss, score
from client.settings import TrainingSettings
from client.training import pick_device


@dataclass(frozen=True)
class Observed:
    """`norm` is the Euclidean norm of a client's update as it is clipped, after any scale; `loss` that of the model it was sent."""

    norm: float
    loss: float


class Observer:
    """Observes turns with `model`, and calls `tell` with each that could be."""

    def __init__(
        self, model: nn.Module, settings: TrainingSettings, tell: Callable[[Observed], None]
    ) -> None:
        self._model = deepcopy(model).to(pick_device(settings.device)).eval()
        self._loss, self._tell = find_loss(settings.loss), tell

    def __call__(self, start: Tensor, scale: Tensor | None, trained: Tensor, examples: Examples) -> None:
        """Observe a turn from `start` to `trained`, both (d,), on `examples`, which stay as they are. Raises nothing."""
        with suppress(Exception, SystemExit), torch.no_grad(), global_generators_kept():
            update = trained - start if scale is None else (trained - start) * scale
            norm = float(torch.linalg.vector_norm(update, dtype=torch.float64))
            set_parameters(self._model, start.cpu().numpy())
            # Copies: a custom model may write into what it is given.
            loss = score(self._model, Examples(examples.x.copy(), examples.y.copy()), loss=self._loss).loss
            self._tell(Observed(norm, loss))
