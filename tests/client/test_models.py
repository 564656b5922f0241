"""The models: their sizes, that a seed determines them, and what they refuse."""

import numpy as np
import pytest
import torch
from torch import nn

from client.models import MODELS, build, parameter_count
from fedmf.errors import SettingError

SHAPES = {
    "logistic": ((8, 8), 10, "classification", 650),
    "mlp": ((28, 28), 10, "classification", 203_530),
    "cnn": ((28, 28), 62, "classification", 1_018_174),
    "lstm": ((20,), 10_004, "next_token", 4_053_428),
    "char_lstm": ((80,), 90, "next_token", 822_570),
}


def made(name: str, seed: int = 0) -> nn.Module:
    """Return the model at the size its papers use."""
    shape, classes, task, _ = SHAPES[name]
    return build(name, input_shape=shape, classes=classes, seed=seed, task=task)


@pytest.mark.parametrize("name", MODELS)
def test_parameter_counts_are_the_documented_ones(name: str) -> None:
    assert parameter_count(made(name)) == SHAPES[name][3]


def test_the_cnn_fits_the_power_of_two_that_the_rotation_pads_to() -> None:
    assert parameter_count(made("cnn")) <= 2**20


@pytest.mark.parametrize("name", ["logistic", "mlp", "cnn"])
@pytest.mark.parametrize("shape", [(8, 8), (28, 28), (32, 30, 3)])
def test_classifiers_fit_any_image_shape(name: str, shape: tuple[int, ...]) -> None:
    model = build(name, input_shape=shape, classes=7, seed=1)
    assert model(torch.zeros(5, *shape)).shape == (5, 7)


@pytest.mark.parametrize("name", ["lstm", "char_lstm"])
def test_language_models_score_every_place_from_the_tokens_up_to_it(name: str) -> None:
    model = build(name, input_shape=(6,), classes=11, seed=0, task="next_token", embedding=4, hidden=5)
    tokens = torch.tensor([[2, 5, 6, 7, 3, 0]])
    changed = tokens.clone()
    changed[0, 3] = 9
    before, after = model(tokens), model(changed)
    assert before.shape == (1, 6, 11)
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.equal(before[:, 3:], after[:, 3:])


@pytest.mark.parametrize("name", ["logistic", "mlp", "cnn", "char_lstm"])
def test_the_seed_determines_the_parameters_and_leaves_the_global_generator_alone(name: str) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second, other = made(name, 1), made(name, 1), made(name, 2)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_models_have_no_buffers_that_would_escape_the_mechanism(name: str) -> None:
    assert list(made(name).buffers()) == []


def test_logistic_regression_is_one_affine_map() -> None:
    model = made("logistic")
    weight, bias = (parameter.detach().numpy() for parameter in model.parameters())
    x = np.random.default_rng(0).normal(size=(3, 8, 8)).astype(np.float32)
    np.testing.assert_allclose(
        model(torch.tensor(x)).detach().numpy(), x.reshape(3, 64) @ weight.T + bias, atol=1e-6
    )


def test_unknown_names_settings_and_unfitting_data_are_refused() -> None:
    with pytest.raises(SettingError, match="logistic, mlp, cnn"):
        build("resnet", input_shape=(8, 8), classes=10, seed=0)
    with pytest.raises(SettingError, match=r"\[5, 28\]"):
        build("cnn", input_shape=(5, 28), classes=10, seed=0)
    with pytest.raises(SettingError, match="next_token data"):
        build("lstm", input_shape=(8, 8), classes=10, seed=0)
    with pytest.raises(SettingError, match=r"^hidden is 3, but logistic"):
        build("logistic", input_shape=(8, 8), classes=10, seed=0, hidden=3)
    with pytest.raises(SettingError, match=r"^hidden is 0"):
        build("mlp", input_shape=(8, 8), classes=10, seed=0, hidden=0)
