"""Custom models, losses, training loops and loaders, right and wrong ones."""

import os
import random
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from client.data import ArrayClients, Dataset, Examples, LazyClients, Public
from client.models import with_adapters


class Linear(nn.Module):
    """Logistic regression for 8 x 8 images, which is right; each class below does one thing wrong."""

    outputs = 10

    def __init__(self, input_shape, classes):
        super().__init__()
        self.linear = nn.Linear(64, self.outputs)

    def forward(self, x):
        return self.linear(x.flatten(1))


class RaisesInConstructor(Linear):
    def __init__(self, input_shape, classes):
        raise KeyError("weights.pt")


class Raises(Linear):
    def forward(self, x):
        raise ValueError("the layers\ndo not fit")


class NotANumber(Linear):
    def forward(self, x):
        return super().forward(x) / 0 * 0


class GradientNotANumber(Linear):
    """Its outputs are finite, but the slope of a square root at 0 is not."""

    def forward(self, x):
        return super().forward(x) + torch.sqrt(self.linear.bias * 0)


class FewOutputs(Linear):
    outputs = 5


class WrongInput(Linear):
    def forward(self, x):
        return self.linear(x.flatten(1)[:, :-1])


class Uncopied(Linear):
    """Holds a tensor that torch refuses to copy."""

    def __init__(self, input_shape, classes):
        super().__init__(input_shape, classes)
        self.twice = self.linear.weight * 2


class Draws(Linear):
    """Right, and draws from every global generator, and writes into its inputs."""

    def forward(self, x):
        x += 0.01 * (random.random() + np.random.rand() + float(torch.rand(())))  # noqa: NPY002
        return super().forward(x)


class Remembers(Linear):
    """Keeps what it was trained on in a closure, which all copies of the model share."""

    def __init__(self, input_shape, classes):
        super().__init__(input_shape, classes)
        seen = []
        self.shift = lambda x: seen.append(x.mean().item()) or sum(seen)

    def forward(self, x):
        return super().forward(x) * (1 + self.shift(x) if self.training else 1)


class Unused(Linear):
    """Has a layer that forward leaves out, and which would be noised all the same."""

    def __init__(self, input_shape, classes):
        super().__init__(input_shape, classes)
        self.pool = nn.Linear(8, 8)


class RaisesOnMany(Linear):
    def forward(self, x):
        if len(x) > 3 and not self.training:
            raise ValueError("too many at once")
        return super().forward(x)


def tokens(vocabulary: int = 10, length: int = 4, highest: int = 9) -> Dataset:
    """Return a dataset of text: targets up to `highest`, each user's first one ignored."""
    x = np.arange(20 * length).reshape(20, length) % vocabulary
    y = np.minimum(x, highest)
    y[0] = -100  # the first test example has nothing to train on
    one_each = np.arange(13)
    held, test = ArrayClients(x[8:], y[8:], one_each[:-1], one_each, np.asarray), Examples(x[:8], y[:8])
    return Dataset("tokens", held, test, (length,), vocabulary, "next_token", "ours", "made up", "one row")


def other_shape() -> Dataset:
    return replace(tokens(), input_shape=(5,))


def nothing_counts() -> Dataset:
    data = tokens()
    return replace(data, test=Examples(data.test.x, np.full_like(data.test.y, -100)))


# What a client's single example makes of the outputs of `Switched`; for worker processes named in the environment.
def honest(outputs):
    return outputs


def raising(outputs):
    raise ValueError("the secret 42")


def not_finite(outputs):
    return outputs * float("nan")


def zero(outputs):
    """An honest client that learns nothing: its update is exactly zero."""
    return outputs * 0 + outputs.detach()


turn = globals()[os.environ.get("OWN_TURN", "honest")]


class Switched(Linear):
    """Right in the rehearsal, on several examples; `turn` decides what becomes of a client, who has one."""

    def forward(self, x):
        if self.training and len(x) > 1 and "OWN_REHEARSALS" in os.environ:
            with open(os.environ["OWN_REHEARSALS"], "a") as file:
                file.write(f"{os.getpid()}\n")
        special = self.training and len(x) == 1 and bool(x.max() >= LEAST)
        return turn(super().forward(x)) if special else super().forward(x)


LEAST = 0.0  # the largest value in an example from which on `turn` plays a part


class Unreadable(ArrayClients):
    """Clients of whom the third cannot be read."""

    def client(self, i):
        if i == 2:
            raise OSError("the disk is gone")
        return super().client(i)


def people(clients: int = 6, unreadable: bool = False) -> Dataset:
    """Return a dataset of images, one a client; only the third client's holds a value as large as 77."""
    x = np.random.default_rng(0).random((clients + 4, 8, 8)).astype("f4")
    x[2] = 77
    y, one_each = np.arange(clients + 4) % 10, np.arange(clients + 1)
    kind = Unreadable if unreadable else ArrayClients
    held, test = kind(x, y, one_each[:-1], one_each), Examples(x[clients:], y[clients:])
    return Dataset(
        "people", held, test, (8, 8), 10, "classification", "ours", "made up", "one image = one client"
    )


class Single(nn.Module):
    """A model of text that is right."""

    def __init__(self, input_shape, classes):
        super().__init__()
        self.embedding = nn.Embedding(classes, classes)

    def forward(self, x):
        return self.embedding(x)


# losses and loops


def hinge(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return a mean over the targets."""
    chosen = outputs.gather(1, targets[:, None])
    return (1 + outputs - chosen).clamp_min(0).sum(1).mean()


def unannotated(outputs, targets):
    return outputs.sum()


def of_one(outputs: Tensor) -> Tensor:
    return outputs.sum()


def of_each(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return a value for each target."""
    return outputs.sum(1)


def whole_batch(model, x, y, settings, order) -> nn.Module:
    """Train as our loop does in one batch, with torch's own optimizer and its `zero_grad`."""
    sgd = torch.optim.SGD(model.parameters(), lr=settings.learning_rate)
    for _ in range(settings.epochs):
        chosen = torch.from_numpy(order.permutation(len(x)))
        sgd.zero_grad()
        nn.functional.cross_entropy(model(x[chosen]), y[chosen]).backward()
        sgd.step()
    return model


def fails(model, x, y, settings, order) -> nn.Module:
    raise RuntimeError("out of luck")


def of_another_shape(model, x, y, settings, order) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 5))


def no_model(model, x, y, settings, order) -> nn.Module:
    return list(model.parameters())


def diverges(model, x, y, settings, order) -> nn.Module:
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    return model


def in_double(model, x, y, settings, order) -> nn.Module:
    return model.double()


def without_order(model, x, y, settings) -> nn.Module:
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


class Own(LazyClients):
    """Three clients of four examples, as somebody's own loader might have them."""

    def __len__(self) -> int:
        return 3

    def client(self, i: int) -> Examples:
        return Examples(np.full((4, 2), i, np.float32), np.arange(4))


def load() -> Dataset:
    test = Examples(np.zeros((3, 2), np.float32), np.zeros(3, np.int64))
    return Dataset("own", Own(), test, (2,), 4, "classification", "", "", "one thing = one client")


def load_of_people() -> Dataset:
    clients = ArrayClients(np.ones((7, 2), np.float32), np.arange(7) % 4, np.arange(7), np.array([0, 5, 7]))
    return replace(load(), clients=clients, person="child")


def load_cutting(examples_per_client: int = 4) -> Dataset:
    return load()


def load_capping(examples_per_client: int = 4, max_examples_per_user: int = 4) -> Dataset:
    return load()


def load_telling(public: Public | None = None) -> Dataset:
    return replace(load(), source="clients" if public else "clients and test set")


def load_with_an_odd_test_example() -> Dataset:
    test = load().test
    test.x[2], test.y[1:] = np.nan, 1
    return replace(load(), test=test, uncounted=(0,))
