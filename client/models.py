"""The models: torch modules built from the shape of the data, deterministically from a seed; and low-rank adapters.

    name       inputs                    outputs                 parameters
    logistic   [n, ...] float32          [n, classes]            650 on 8 x 8 digits
    mlp        [n, ...] float32          [n, classes]            203,530 (28 x 28 images, 10 classes); one hidden layer
    cnn        [n, H, W] or [n, H, W, C] [n, classes]            1,018,174 (28 x 28 images, 62 classes)
    lstm       [n, length] int64         [n, length, vocabulary] 4,053,428 (10,000 words and 4 special tokens); one LSTM layer
    char_lstm  [n, length] int64         [n, length, vocabulary] 822,570 (86 characters and 4 special tokens); two

These models have parameters only, no buffers and nothing that draws. A custom model may have both: constant
buffers (batch normalisation in evaluation mode, see `client.parameters`), and dropout, which draws from a generator
seeded for each client and epoch (`client.training`).

Adapters (Hu et al. 2022) are a frozen linear layer W with a small trained B A added to it:

    import torch
    from client import with_adapters

    def build(input_shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        return with_adapters(Backbone(classes), rank=4, layers=["encoder.*"], trainable=["head.*"])

With `model=custom model.name=mine:build model.start=backbone.npz` only the adapters and the head are sent, bounded and
noised. The layer keeps its name and the names of its weights, so that a backbone's file fits with adapters and without.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from client.data.dataset import CLASSIFICATION, NEXT_TOKEN
from client.imports import calling, check_takes, import_maker
from client.parameters import choose_trained, start_from
from fedmf.checks import check_at_least, check_choice, check_positive
from fedmf.errors import SettingError


class Cnn(nn.Module):
    """3 x 3 convolution, 2 x 2 pooling, 3 x 3 convolution, one dense layer, one output layer.

    The network of the Federated EMNIST experiments of Kairouz, Liu, Steinke 2021 (distributed discrete
    Gaussian) and its successors, sized to stay below 2^20 parameters, the power of two to which the rotation
    pads. Their dropout is left out. Inputs float32 [n, H, W] or [n, H, W, C] with H and W at least 8; outputs
    [n, classes].
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        """Lay out the layers for images [H, W] or [H, W, C] (channels last)."""
        shape = (*input_shape, 1) if len(input_shape) == 2 else input_shape
        if len(shape) != 3 or min(shape[:2]) < 8:
            raise SettingError(
                f"model is 'cnn' but an input has the shape {list(input_shape)}; "
                "it must be [H, W] or [H, W, channels] with H and W at least 8."
            )
        super().__init__()
        height, width, channels = shape
        self.conv1 = nn.Conv2d(channels, 32, kernel_size=3)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=3)
        features = 64 * ((height - 2) // 2 - 2) * ((width - 2) // 2 - 2)
        self.dense = nn.Linear(features, 128)
        self.output = nn.Linear(128, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(1) if x.ndim == 3 else x.permute(0, 3, 1, 2)
        x = nn.functional.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = torch.relu(self.conv2(x)).flatten(1)
        return self.output(torch.relu(self.dense(x)))  # type: ignore[no-any-return]


class Lstm(nn.Module):
    """Embedding, LSTM layers, an optional narrower dense layer, one logit per token of the vocabulary.

    Inputs int64 [n, length] with token 0 for padding, outputs float32 [n, length, vocabulary]: place t scores
    token t + 1 from the tokens up to t. Sizes from Reddi et al. 2021: words 96, 670, 96; characters 8, 2 x
    256, none. torch keeps two bias vectors per LSTM layer where the paper's library keeps one, hence 2680
    parameters more.
    """

    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int, projection: int) -> None:
        """Lay out the layers; `projection` 0 leaves the dense layer out."""
        check_at_least("embedding", embedding, 1)
        check_at_least("hidden", hidden, 1)
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=layers, batch_first=True)
        self.projection = nn.Linear(hidden, projection) if projection else nn.Identity()
        self.output = nn.Linear(projection or hidden, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(x))
        return self.output(self.projection(states))  # type: ignore[no-any-return]


def logistic(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return logistic regression on the flattened input: inputs [n, ...], outputs [n, classes]."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), classes))


def mlp(input_shape: tuple[int, ...], classes: int, hidden: int = 256) -> nn.Module:
    """Return a network with one hidden layer of rectified units: inputs [n, ...], outputs [n, classes]."""
    check_at_least("hidden", hidden, 1)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(input_shape), hidden), nn.ReLU(), nn.Linear(hidden, classes)
    )


def lstm(input_shape: tuple[int, ...], classes: int, embedding: int = 96, hidden: int = 670) -> nn.Module:
    """Return the next-word model: one LSTM layer, and a dense layer as wide as the embedding."""
    return Lstm(classes, embedding, hidden, layers=1, projection=embedding)


def char_lstm(input_shape: tuple[int, ...], classes: int, embedding: int = 8, hidden: int = 256) -> nn.Module:
    """Return the next-character model: two LSTM layers."""
    return Lstm(classes, embedding, hidden, layers=2, projection=0)


# Name -> (builder, the task whose data it fits); models of classes give as many amounts, or logits of labels, as well.
MODELS: dict[str, tuple[Callable[..., nn.Module], str]] = {
    "logistic": (logistic, CLASSIFICATION),
    "mlp": (mlp, CLASSIFICATION),
    "cnn": (Cnn, CLASSIFICATION),
    "lstm": (lstm, NEXT_TOKEN),
    "char_lstm": (char_lstm, NEXT_TOKEN),
}


def build(
    name: str,
    *,
    input_shape: tuple[int, ...],
    classes: int,
    seed: int,
    task: str = CLASSIFICATION,
    trainable: Sequence[str] | None = None,
    start: str | Path | None = None,
    **settings: Any,
) -> nn.Module:
    """Return the model called `name`, fitted to inputs of `input_shape` and to `classes` outputs.

    `name` is one of `MODELS` or an import path `package.module:Class` of a torch module, or of a function annotated
    with `-> nn.Module`, called with the keyword arguments input_shape, classes and `settings`.

    The parameters are a function of the arguments alone: torch's default initialisation under a generator
    seeded with `seed`; the global generator is left as it was. `task` is the dataset's, one of
    `client.data.dataset.TASKS`. Settings that are None are left to the builder. `start` is an .npz file whose arrays take the place
    of parameters and buffers of the same names (`start_from`); `trainable` are patterns of the names of those
    parameters that train, all others being frozen, and None leaves that to the model. Raises `SettingError` for an
    unknown name or setting, and for data that the model does not fit.

    >>> model = build("logistic", input_shape=(8, 8), classes=10, seed=0)
    >>> sum(parameter.numel() for parameter in model.parameters())
    650
    """
    builder = _builder(name, task)
    given = {key: value for key, value in settings.items() if value is not None}
    check_takes(builder, given, who=name, own=("input_shape", "classes"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        shape = {"input_shape": input_shape, "classes": classes}
        model = calling(f"model is {name!r}, which could not be made", builder, **shape, **given)
    if not isinstance(model, nn.Module):
        raise SettingError(
            f"model is {name!r}, which made an object of type {type(model).__name__}; it must make a torch.nn.Module."
        )
    if trainable is not None:
        choose_trained(model, trainable)
    if start is not None:
        start_from(model, start)  # which looks at what is frozen
    return model


def _builder(name: str, task: str) -> Callable[..., nn.Module]:
    """Return what makes the model called `name`, after checking that it fits the task."""
    if ":" in name:
        return import_maker(name, "name", nn.Module)
    check_choice("model", name, (*MODELS, "package.module:Class"))
    builder, fits = MODELS[name]
    is_of_tokens = task == NEXT_TOKEN
    if (fits == NEXT_TOKEN) != is_of_tokens:
        fitting = ", ".join(
            other for other, entry in MODELS.items() if (entry[1] == NEXT_TOKEN) == is_of_tokens
        )
        raise SettingError(
            f"model is {name!r}, which is for {fits} data, but the task is {task}; use one of {fitting}."
        )
    return builder


class LowRankLinear(nn.Linear):
    """A linear layer x W^T + b + scale (x A^T) B^T, with A = `low_rank_in` [rank, in] and B = `low_rank_out` [out, rank].

    B begins at zero, so that the layer begins as `linear` itself, whose weights it holds, and A with entries of
    variance 1 / in.
    """

    def __init__(self, linear: nn.Linear, rank: int, scale: float) -> None:
        nn.Module.__init__(self)  # that of Linear would draw weights, which are there
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias, self.scale = linear.weight, linear.bias, scale
        self.low_rank_in = nn.Parameter(torch.randn(rank, self.in_features) / math.sqrt(self.in_features))
        self.low_rank_out = nn.Parameter(torch.zeros(self.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        low_rank = nn.functional.linear(nn.functional.linear(x, self.low_rank_in), self.low_rank_out)
        return super().forward(x) + self.scale * low_rank


def with_adapters(
    model: nn.Module,
    rank: int,
    *,
    layers: Iterable[str] = ("*",),
    trainable: Iterable[str] = (),
    scale: float = 1.0,
) -> nn.Module:
    """Return `model`, changed: its linear layers whose names match `layers` have adapters of `rank`, all else is frozen.

    `trainable` are patterns of further parameters that train, such as those of a head. Raises `SettingError` for a
    pattern that matches nothing, and for a layer whose weights torch reads without calling it.

    >>> model = with_adapters(nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 3)), 2, layers=["0"], trainable=["1.*"])
    >>> [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    ['0.low_rank_in', '0.low_rank_out', '1.weight', '1.bias']
    """
    check_at_least("rank", rank, 1)
    check_positive("scale", scale)
    every = model.named_modules(remove_duplicate=False)  # a model may contain a layer twice
    linear = {name: module for name, module in every if type(module) is nn.Linear and name}
    chosen: set[str] = set()
    for pattern in layers:
        matching = {name for name in linear if fnmatchcase(name, pattern)}
        if not matching:
            raise SettingError(
                f"layers holds {pattern!r}, which matches no linear layer; they are {', '.join(linear) or 'none'}."
            )
        chosen |= matching
    for name, module in model.named_modules():
        inside = sorted(one for one in chosen if one.startswith(f"{name}."))
        if (
            isinstance(module, nn.TransformerEncoderLayer) and inside
        ):  # in evaluation it reads their weights itself
            raise SettingError(
                f"layers match {inside[0]}, a part of torch's TransformerEncoderLayer, which reads its weights without "
                "calling it; choose other layers, or write the encoder out of layers of your own."
            )
    adapted = {
        id(linear[name]): LowRankLinear(linear[name], rank, scale) for name in linear if name in chosen
    }
    for name, layer in linear.items():
        if id(layer) in adapted:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, adapted[id(layer)])
    choose_trained(model, ["*.low_rank_in", "*.low_rank_out", *trainable])
    return model
