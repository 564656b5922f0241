"""Low-rank adapters (Hu et al. 2022): a frozen linear layer W, and a small trained B A beside it.

    import torch
    from client import with_adapters

    def build(input_shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        return with_adapters(Backbone(classes), rank=4, layers=["encoder.*"], trainable=["head.*"])

With `model=custom model.name=mine:build model.start=backbone.npz` only the adapters and the head are sent, bounded and
noised. The layer keeps its name and the names of its weights, so that a backbone's file fits with adapters and without.
"""

import math
from collections.abc import Iterable
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from client.parameters import choose_trained
from fedmf.checks import check_at_least, check_positive
from fedmf.errors import SettingError

_WEIGHTS = ("low_rank_in", "low_rank_out")


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
        """Return the outputs [..., out] of inputs [..., in]."""
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
    every = model.named_modules(remove_duplicate=False)  # a layer may stand in two places
    linear = {name: module for name, module in every if type(module) is nn.Linear and name}
    chosen: set[str] = set()
    for pattern in layers:
        matching = {name for name in linear if fnmatchcase(name, pattern)}
        if not matching:
            raise SettingError(
                f"layers holds {pattern!r}, which matches no linear layer; they are {', '.join(linear) or 'none'}."
            )
        chosen |= matching
    _refuse_layers_not_called(model, chosen)
    adapted = {
        id(linear[name]): LowRankLinear(linear[name], rank, scale) for name in linear if name in chosen
    }
    for name, layer in linear.items():
        if id(layer) in adapted:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, adapted[id(layer)])
    own = [f"{name}.{weight}" for name in linear if name in chosen for weight in _WEIGHTS]
    choose_trained(model, [*own, *trainable])
    return model


def _refuse_layers_not_called(model: nn.Module, chosen: set[str]) -> None:
    """Raise `SettingError` for layers of torch's encoder layer, which in evaluation reads their weights itself."""
    for name, module in model.named_modules():
        inside = sorted(one for one in chosen if one.startswith(f"{name}."))
        if isinstance(module, nn.TransformerEncoderLayer) and inside:
            raise SettingError(
                f"layers match {inside[0]}, a part of torch's TransformerEncoderLayer, which reads its weights without "
                "calling it; choose other layers, or write the encoder out of layers of your own."
            )
