"""Losses, training loops and models of a user's own, named by import path in tests."""

import numpy as np
import torch
from torch import Tensor, nn

from client.models import with_adapters


def hinge(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return a mean over the targets."""
    chosen = outputs.gather(1, targets[:, None])
    return (1 + outputs - chosen).clamp_min(0).sum(1).mean()


def unannotated(outputs, targets):
    """Promise nothing."""
    return outputs.sum()


def of_one(outputs: Tensor) -> Tensor:
    """Take no targets."""
    return outputs.sum()


def of_each(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return a value for each target."""
    return outputs.sum(1)


def infinite(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return no finite number."""
    return outputs.sum() / 0


def whole_batch(model, x, y, settings, order) -> nn.Module:
    """Train as our loop does in one batch, with torch's own optimizer and its `zero_grad`."""
    sgd = torch.optim.SGD(model.parameters(), lr=settings.learning_rate)
    for _ in range(settings.epochs):
        chosen = torch.from_numpy(order.permutation(len(x)))
        sgd.zero_grad()
        nn.functional.cross_entropy(model(x[chosen]), y[chosen]).backward()
        sgd.step()
    return model


def raising(model, x, y, settings, order) -> nn.Module:
    """Fail."""
    raise RuntimeError("out of luck")


def other_shape(model, x, y, settings, order) -> nn.Module:
    """Return another model."""
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 5))


def no_model(model, x, y, settings, order) -> nn.Module:
    """Break the promise."""
    return list(model.parameters())


def not_finite(model, x, y, settings, order) -> nn.Module:
    """Diverge."""
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    return model


def in_double(model, x, y, settings, order) -> nn.Module:
    """Return what is no float32."""
    return model.double()


def without_order(model, x, y, settings) -> nn.Module:
    """Lack an argument."""
    return model


class Probe(nn.Module):
    """A backbone with batch normalisation, and a head: what a file of the backbone alone can begin."""

    def __init__(self, input_shape, classes, width=12, dropout=0.0):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Flatten(), nn.Linear(int(np.prod(input_shape)), width), nn.BatchNorm1d(width), nn.ReLU()
        )
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.drop(self.backbone(x)))


def adapted(input_shape: tuple[int, ...], classes: int, rank: int = 2) -> nn.Module:
    """Return a network whose first layer is adapted and whose last one trains."""
    network = nn.Sequential(
        nn.Flatten(), nn.Linear(int(np.prod(input_shape)), 12), nn.ReLU(), nn.Linear(12, classes)
    )
    return with_adapters(network, rank, layers=["1"], trainable=["3.*"])


def trains_nothing(model, x, y, settings, order) -> nn.Module:
    """A loop that forgets to train."""
    return model


def with_a_loss_of_its_own(model, x, y, settings, order) -> nn.Module:
    """A loop whose loss reaches a layer that forward leaves out."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    model.eval()
    return model


def leaves_traces(model, x, y, settings, order) -> nn.Module:
    """Train, and change whatever in the process can be reached from what is given."""
    nn.functional.cross_entropy(model(x), y).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.sub_(settings.learning_rate * parameter.grad)
    x.zero_()
    y.zero_()
    object.__setattr__(settings, "learning_rate", 10.0)
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    return model
