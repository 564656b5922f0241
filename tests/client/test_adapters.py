"""Low-rank adapters: they begin as the layer itself, train alone, and are the formula."""

import numpy as np
import pytest
import torch
from torch import nn

from client.adapters import LowRankLinear, with_adapters
from client.parameters import flat_parameters, layout_of
from client.settings import TrainingSettings
from client.start import start_from
from client.training import Trainer
from fedmf.errors import SettingError

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))


def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 3))


def test_a_model_with_adapters_begins_as_the_model_without():
    assert torch.equal(with_adapters(plain(), 2)(X), plain()(X))


def test_the_adapter_is_a_low_rank_change_of_the_weight():
    layer = LowRankLinear(nn.Linear(8, 7), rank=2, scale=0.5)
    nn.init.normal_(layer.low_rank_out)
    weight = layer.weight + 0.5 * layer.low_rank_out @ layer.low_rank_in
    torch.testing.assert_close(layer(X), nn.functional.linear(X, weight, layer.bias))


def test_only_adapters_and_what_is_named_train():
    model = with_adapters(plain(), 2, layers=["0"], trainable=["2.*"])
    assert layout_of(model).names == ("0.low_rank_in", "0.low_rank_out", "2.weight", "2.bias")
    assert layout_of(model).dimension == 2 * 8 + 7 * 2 + 7 * 3 + 3
    trainer = Trainer(model, TrainingSettings(0.5, device="cpu"))
    update = trainer.update(
        flat_parameters(model), X.numpy(), np.arange(6) % 3, order=np.random.default_rng(0)
    )
    split = layout_of(model).split(update)
    assert split["0.low_rank_out"].any()
    assert split["2.weight"].any()
    assert trainer.changed_tensors() == []


def test_a_file_of_the_plain_model_fits_the_one_with_adapters(tmp_path):
    weights = {name: tensor.numpy() for name, tensor in plain().state_dict().items()}
    np.savez(tmp_path / "plain.npz", **weights)
    torch.manual_seed(5)
    model = with_adapters(nn.Sequential(nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 3)), 2)
    start_from(model, tmp_path / "plain.npz")
    assert torch.equal(model(X), plain()(X))


def test_a_layer_in_two_places_has_one_adapter():
    layer = nn.Linear(8, 8)
    model = with_adapters(nn.Sequential(layer, nn.ReLU(), layer), 2, layers=["0"])
    assert model[0] is model[2]
    assert layout_of(model).dimension == 32


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rank": 0}, "rank is 0"),
        ({"rank": 2, "scale": 0.0}, "scale is 0"),
        (
            {"rank": 2, "layers": ["conv*"]},
            "layers holds 'conv\\*', which matches no linear layer; they are 0, 2",
        ),
        ({"rank": 2, "trainable": ["head.*"]}, "'head.*' matches no parameter"),
    ],
    ids=str,
)
def test_what_cannot_be_adapted_is_refused(wrong, said):
    with pytest.raises(SettingError, match=said):
        with_adapters(plain(), **wrong)


def test_layers_that_torch_reads_without_calling_them_are_refused():
    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16), nn.Linear(8, 3))
    with pytest.raises(SettingError, match=r"0\.linear1, a part of torch's TransformerEncoderLayer"):
        with_adapters(model, 2)
    assert layout_of(with_adapters(model, 2, layers=["1"])).names == ("1.low_rank_in", "1.low_rank_out")
