"""Models and adapters, what of them trains and what stays, and files to start from."""

import copy

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from client.models import MODELS, LowRankLinear, build, with_adapters
from client.parameters import (
    choose_trained,
    digest_tensors,
    fixed_tensors,
    flat_parameters,
    layout_of,
    model_arrays,
    set_arrays,
    set_parameters,
    start_from,
)
from client.settings import TrainingSettings
from client.training import Trainer
from fedmf.errors import SettingError

SETTINGS = TrainingSettings(0.5, batch_size=3, device="cpu")
X = np.random.default_rng(0).normal(size=(8, 4)).astype("f4")
Y = np.arange(8) % 3
SHAPES = {
    "logistic": ((8, 8), 10, "classification", 650),
    "mlp": ((28, 28), 10, "classification", 203_530),
    "cnn": ((28, 28), 62, "classification", 1_018_174),  # below 2^20, to which the rotation pads
    "lstm": ((20,), 10_004, "next_token", 4_053_428),
    "char_lstm": ((80,), 90, "next_token", 822_570),
}


def made(name, seed=0):
    """The model at the size its papers use."""
    shape, classes, task, _ = SHAPES[name]
    return build(name, input_shape=shape, classes=classes, seed=seed, task=task)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_the_documented_size_no_buffers_and_parameters_that_the_seed_determines(name):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second, other = made(name, 1), made(name, 1), made(name, 2)
    assert torch.equal(torch.get_rng_state(), before)
    assert layout_of(first).dimension == SHAPES[name][3]
    assert list(first.buffers()) == []
    np.testing.assert_array_equal(flat_parameters(first), flat_parameters(second))
    assert not np.array_equal(flat_parameters(first), flat_parameters(other))


@pytest.mark.parametrize("name", ["logistic", "mlp", "cnn"])
def test_classifiers_fit_any_image_shape(name):
    for shape in ((8, 8), (32, 30, 3)):
        assert build(name, input_shape=shape, classes=7, seed=1)(torch.zeros(5, *shape)).shape == (5, 7)


@pytest.mark.parametrize("name", ["lstm", "char_lstm"])
def test_language_models_score_every_place_from_the_tokens_up_to_it(name):
    model = build(name, input_shape=(6,), classes=11, seed=0, task="next_token", embedding=4, hidden=5)
    tokens = torch.tensor([[2, 5, 6, 7, 3, 0]])
    changed = tokens.clone()
    changed[0, 3] = 9
    before, after = model(tokens), model(changed)
    assert before.shape == (1, 6, 11)
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.equal(before[:, 3:], after[:, 3:])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "resnet"}, "logistic, mlp, cnn"),
        ({"name": "cnn", "input_shape": (5, 28)}, r"\[5, 28\]"),
        ({"name": "lstm"}, "next_token data"),
        ({"name": "logistic", "hidden": 3}, "^hidden is 3, but logistic"),
        ({"name": "mlp", "hidden": 0}, "^hidden is 0"),
        ({"name": "users_own:RaisesInConstructor"}, "which could not be made: KeyError: 'weights.pt'"),
        ({"name": "os:system"}, "was not called"),
    ],
    ids=str,
)
def test_unknown_names_settings_and_unfitting_data_are_errors(given, said):
    with pytest.raises(SettingError, match=said):
        build(**{"input_shape": (8, 8), "classes": 10, "seed": 0} | given)


def two_layers(*, frozen=True):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    model[0].requires_grad_(not frozen)
    return model


def trainer_of(model):
    return Trainer(model, SETTINGS, "classification")


def update_of(trainer, start=None):
    start = flat_parameters(trainer._model) if start is None else start
    return trainer.update(start, X, Y, order=np.random.default_rng(1))


class Tied(nn.Module):
    """Embedding and output share their weight."""

    def __init__(self):
        super().__init__()
        self.embedding, self.output = nn.Embedding(6, 4), nn.Linear(4, 6)
        self.output.weight = self.embedding.weight


def test_what_is_frozen_is_not_counted_and_bit_equal_after_the_training_of_plain_torch():
    model = two_layers()
    assert layout_of(model).names == ("2.weight", "2.bias")
    twin, order = copy.deepcopy(model), np.random.default_rng(1).permutation(8)
    sgd = torch.optim.SGD([p for p in twin.parameters() if p.requires_grad], lr=0.5)
    for batch in (order[:3], order[3:6], order[6:]):
        sgd.zero_grad()
        nn.functional.cross_entropy(twin(torch.from_numpy(X[batch])), torch.from_numpy(Y[batch])).backward()
        sgd.step()
    start, trainer = flat_parameters(model), trainer_of(model)
    np.testing.assert_allclose(update_of(trainer, start), flat_parameters(twin) - start, atol=1e-6)
    assert trainer.changed_tensors() == []
    for name, tensor in fixed_tensors(trainer._model).items():
        assert torch.equal(tensor, model.get_parameter(name))


def test_a_tied_parameter_counts_once_has_one_value_and_either_name_chooses_it(tmp_path):
    model = Tied()
    assert layout_of(model).names == ("embedding.weight", "output.bias")
    set_parameters(model, np.arange(30, dtype="f4"))
    assert model.output.weight[5, 3] == 23
    assert list(model_arrays(model, flat_parameters(model))) == ["embedding.weight", "output.bias"]
    choose_trained(model, ["output.weight"])
    assert layout_of(model).names == ("embedding.weight",)
    differing = {"embedding.weight": np.ones((6, 4)), "output.weight": np.zeros((6, 4))}
    with pytest.raises(SettingError, match="differ, but are one parameter"):
        start_from(Tied(), saved(tmp_path / "t.npz", **differing))


def test_patterns_choose_what_trains_and_freeze_the_rest_and_one_that_matches_nothing_is_an_error():
    model = two_layers()
    choose_trained(model, ["0.weight", "2.b*"])
    assert layout_of(model).names == ("0.weight", "2.bias")
    said = r"^trainable is \['head.\*'\], but 'head.\*' matches no.*0.weight, 0.bias, 2.weight, 2.bias"
    with pytest.raises(SettingError, match=said):
        choose_trained(two_layers(), ["head.*"])


UNTRAINABLE = {
    "2.weight of the model is a torch.strided tensor of torch.float16": lambda model: model[2].half(),
    "no shape yet": lambda model: model.insert(0, nn.LazyLinear(5)),
    "no parameter of the model trains": lambda model: model.requires_grad_(False),
    "2.weight .* gradient hook": lambda model: model[2].weight.register_hook(torch.zeros_like),
    "2.bias .* gradient hook": lambda model: model[2].bias.register_post_accumulate_grad_hook(print),
    "torch.sparse_coo tensor": lambda model: model.register_buffer("sparse", torch.eye(3).to_sparse()),
    "twin and 2.weight .* in one memory": lambda model: model.register_parameter(
        "twin", nn.Parameter(model[2].weight.data)
    ),
    "2.weight and copy .* in one memory": lambda model: model.register_buffer("copy", model[2].weight.data),
    "buffers: the running statistics of 3 follow.*GroupNorm": lambda model: model.append(nn.BatchNorm1d(3)),
    "the running statistics of 3 follow": lambda model: model.append(nn.BatchNorm1d(3, affine=False)),
}


@pytest.mark.parametrize("said", UNTRAINABLE)
def test_models_that_cannot_be_trained_are_errors(said):
    model = two_layers()
    UNTRAINABLE[said](model)
    with pytest.raises(SettingError, match=said):
        trainer_of(model)


def normalised(*, frozen=False, evaluated=False):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    model[1].running_mean.fill_(0.25)
    model[1].requires_grad_(not frozen)
    model[1].train(not evaluated)
    return model


@pytest.mark.parametrize("how", [{"frozen": True}, {"evaluated": True}], ids=str)
def test_batch_norm_at_rest_trains_in_evaluation_mode_and_stays_bit_equal(how):
    without = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False))
    assert update_of(trainer_of(without)).any()  # it has no state
    model = normalised(**how)
    trainer = trainer_of(model)
    assert update_of(trainer).any()
    assert trainer._model.training
    assert not trainer._model[1].training
    assert trainer.changed_tensors() == []
    assert torch.equal(trainer._model[1].running_mean, model[1].running_mean)


class Scaled(nn.Sequential):
    """Has a constant buffer and a frozen weight, and changes what `change` changes in training."""

    def __init__(self, change=None):
        super().__init__(nn.Linear(4, 5), nn.Linear(5, 3))
        self[0].requires_grad_(False)
        self.register_buffer("factor", torch.full((3,), 2.0))
        self.register_buffer("zeros", torch.zeros(2), persistent=False)
        self.change = change

    def forward(self, x):
        if self.change is not None:
            with torch.no_grad():
                self.change(self)
        return super().forward(x) * self.factor


CHANGES = {
    "in place": lambda model: model.factor.mul_(1.5),
    "a frozen weight": lambda model: model[0].weight.data.mul_(1.5),
    "the sign of zero": lambda model: model.zeros.neg_(),
    "another tensor": lambda model: setattr(model, "factor", torch.full((3,), 3.0)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_what_does_not_train_is_found_and_reaches_no_other_client(name):
    trainer, start = trainer_of(Scaled(CHANGES[name])), flat_parameters(Scaled())
    assert trainer.changed_tensors() == []
    first = update_of(trainer, start)
    assert trainer.changed_tensors() != []
    np.testing.assert_array_equal(update_of(trainer, start), first)  # the model is as it was made again


def test_constant_buffers_train_and_are_stored_where_they_count_to_the_state():
    model, other = Scaled(), Scaled()
    trainer = trainer_of(model)
    assert update_of(trainer).any()
    assert trainer.changed_tensors() == []
    arrays = model_arrays(model, flat_parameters(model))
    assert sorted(arrays) == ["0.bias", "0.weight", "1.bias", "1.weight", "factor"]
    other.factor.zero_()
    set_arrays(other, arrays)
    for one, two in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(one, two)


def test_the_digest_tells_every_bit_of_the_fixed_part_and_nothing_of_what_trains():
    model, same = Scaled(), Scaled()
    same.load_state_dict(model.state_dict())
    with torch.no_grad():
        same[1].weight.add_(1)
    digest = trainer_of(model).fixed_digest
    assert digest == trainer_of(same).fixed_digest == digest_tensors(fixed_tensors(model))
    for name in ("in place", "a frozen weight", "the sign of zero"):
        other = copy.deepcopy(same)
        with torch.no_grad():
            CHANGES[name](other)
        assert trainer_of(other).fixed_digest != digest
    assert trainer_of(two_layers(frozen=False)).fixed_digest == ""


def saved(path, **arrays):
    np.savez(path, **arrays)
    return path


BIAS = {"2.bias": np.ones(3)}
UNFIT = {
    "no file": ({}, "cannot be used: .*No such file"),
    "other names": ({"else": np.ones(3)}, "it holds else, and nothing of the model's"),
    "shape": (BIAS | {"0.weight": np.ones((4, 5))}, r"0.weight has the shape \(4, 5\).*must be \(5, 4\)"),
    "not finite": (
        BIAS | {"0.bias": np.ones(5), "0.weight": np.full((5, 4), np.nan)},
        "0.weight holds values that are not finite",
    ),
    "texts": (
        BIAS | {"0.weight": np.ones((5, 4)), "0.bias": np.array(list("abcde"))},
        "0.bias is no array of numbers",
    ),
    "complex": (
        BIAS | {"0.weight": np.ones((5, 4)), "0.bias": np.ones(5, complex)},
        "0.bias holds numbers of torch.complex128; those of the model are of torch.float32",
    ),
    "lacks what is frozen": (
        {"0.bias": np.ones(5), "module.0.weight": np.ones((5, 4))},
        "it lacks 0.weight: frozen, it would stay random; .*module.0.weight",
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_files_that_do_not_fit_are_errors_and_leave_the_model_as_it_was(tmp_path, name):
    (arrays, said), model, path = UNFIT[name], two_layers(), tmp_path / "start.npz"
    if arrays:
        saved(path, **arrays)
    with pytest.raises(SettingError, match=f"^start is '.*{said}"):
        start_from(model, path)
    for one, other in zip(model.parameters(), two_layers().parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_model_is_built_from_what_its_start_has_and_with_what_trains(tmp_path):
    path = saved(tmp_path / "start.npz", **{"1.weight": np.full((10, 4), 0.5), "else": np.ones(3)})
    given = {"name": "logistic", "input_shape": (2, 2), "classes": 10, "seed": 0}
    model = build(**given, start=path, trainable=["*.bias"])
    assert layout_of(model).names == ("1.bias",)
    assert (model[1].weight == 0.5).all()
    assert torch.equal(model[1].bias, build(**given)[1].bias)  # the seed's own


class Planted:
    """An object whose unpickling makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("form", ["pt", "pth", "safetensors"])
def test_a_start_of_torch_or_safetensors_is_that_of_the_same_arrays_and_nothing_in_it_is_run(tmp_path, form):
    save = save_file if form == "safetensors" else torch.save
    state = {name: (tensor + 1).bfloat16() for name, tensor in two_layers().state_dict().items()}
    path, model, other = tmp_path / f"start.{form}", two_layers(), two_layers()
    save(state | {"else": torch.zeros(2)}, path)
    start_from(model, path)
    start_from(
        other, saved(tmp_path / "start.npz", **{name: tensor.float() for name, tensor in state.items()})
    )
    digest = digest_tensors(model.state_dict())
    assert digest == digest_tensors(other.state_dict())
    unfit = {
        r"0.weight has the shape \(4, 5\)": torch.zeros(4, 5),
        "0.weight holds numbers of torch.int8": torch.zeros(5, 4, dtype=torch.int8),
        "it is damaged, or holds more than a state dict; nothing in it was run": Planted(tmp_path / "made"),
        r"it holds 0.weight \(dict\); save the state dict alone": state,
        "0.weight is no dense array of numbers": torch.zeros(5, 4).to_sparse(),
    }
    for said, value in list(unfit.items())[: 2 if form == "safetensors" else None]:
        save(state | {"0.weight": value}, path)
        with pytest.raises(SettingError, match=f"^start is '.*{said}"):
            start_from(model, path)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(SettingError, match=r"^start is '.*it is damaged"):
        start_from(model, path)
    assert not (tmp_path / "made").exists()
    assert digest == digest_tensors(model.state_dict())


def test_a_model_with_adapters_begins_as_the_model_without_also_from_its_file(tmp_path):
    plain, model, x = two_layers(), with_adapters(two_layers(), 2), torch.from_numpy(X)
    assert torch.equal(model(x), plain(x))
    saved(tmp_path / "plain.npz", **{name: tensor.numpy() + 1 for name, tensor in plain.state_dict().items()})
    for one in (plain, model):
        start_from(one, tmp_path / "plain.npz")
    assert torch.equal(model(x), plain(x))


def test_the_adapter_is_a_low_rank_change_of_the_weight():
    layer = LowRankLinear(nn.Linear(4, 7), rank=2, scale=0.5)
    nn.init.normal_(layer.low_rank_out)
    weight = layer.weight + 0.5 * layer.low_rank_out @ layer.low_rank_in
    x = torch.from_numpy(X)
    torch.testing.assert_close(layer(x), nn.functional.linear(x, weight, layer.bias))


def test_only_adapters_and_what_is_named_train_and_a_layer_in_two_places_has_one():
    model = with_adapters(two_layers(), 2, layers=["0"], trainable=["2.*"])
    assert layout_of(model).names == ("0.low_rank_in", "0.low_rank_out", "2.weight", "2.bias")
    assert layout_of(model).dimension == 2 * 4 + 5 * 2 + 5 * 3 + 3
    trainer = trainer_of(model)
    split = layout_of(model).split(update_of(trainer))
    assert split["0.low_rank_out"].any()
    assert split["2.weight"].any()
    assert trainer.changed_tensors() == []
    layer = nn.Linear(8, 8)
    twice = with_adapters(nn.Sequential(layer, nn.ReLU(), layer), 2, layers=["0"])
    assert twice[0] is twice[2]
    assert layout_of(twice).dimension == 32


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rank": 0}, "rank is 0"),
        ({"rank": 2, "scale": 0.0}, "scale is 0"),
        ({"rank": 2, "layers": ["c*"]}, "layers holds 'c\\*', which matches no linear layer; they are 0, 2"),
        ({"rank": 2, "trainable": ["head.*"]}, "'head.*' matches no parameter"),
    ],
    ids=str,
)
def test_what_cannot_be_adapted_is_an_error(wrong, said):
    with pytest.raises(SettingError, match=said):
        with_adapters(two_layers(), **wrong)
    torchs = nn.TransformerEncoderLayer(8, 2, 16)
    with pytest.raises(SettingError, match=r"0\.linear1, a part of torch's TransformerEncoderLayer"):
        with_adapters(nn.Sequential(torchs), 2)
