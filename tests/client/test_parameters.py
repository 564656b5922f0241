"""What trains and what stays: layouts, patterns, frozen parts, buffers, and files to begin from."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import zip_heads
from client.models import build, parameter_count
from client.parameters import (
    check_trainable,
    choose_trained,
    digest_tensors,
    fixed_tensors,
    flat_parameters,
    layout_of,
    model_arrays,
    set_arrays,
    set_parameters,
)
from client.settings import TrainingSettings
from client.start import start_from
from client.training import Trainer
from fedmf.errors import SettingError

SETTINGS = TrainingSettings(0.5, batch_size=3, device="cpu")
X = np.random.default_rng(0).normal(size=(8, 4)).astype("f4")
Y = np.arange(8) % 3


def two_layers(*, frozen=True):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    model[0].requires_grad_(not frozen)
    return model


def update_of(trainer, start=None):
    start = flat_parameters(trainer._model) if start is None else start
    return trainer.update(start, X, Y, order=np.random.default_rng(1))


class Tied(nn.Module):
    """Embedding and output share their weight."""

    def __init__(self):
        super().__init__()
        self.embedding, self.output = nn.Embedding(6, 4), nn.Linear(4, 6)
        self.output.weight = self.embedding.weight


def test_what_is_frozen_is_not_counted():
    model = two_layers()
    assert layout_of(model).names == ("2.weight", "2.bias")
    assert len(flat_parameters(model)) == layout_of(model).dimension == parameter_count(model) == 18


def test_the_update_is_that_of_plain_torch_on_what_trains():
    model = two_layers()
    twin = copy.deepcopy(model)
    sgd = torch.optim.SGD([p for p in twin.parameters() if p.requires_grad], lr=0.5)
    order = np.random.default_rng(1).permutation(8)
    for batch in (order[:3], order[3:6], order[6:]):
        sgd.zero_grad()
        nn.functional.cross_entropy(twin(torch.from_numpy(X[batch])), torch.from_numpy(Y[batch])).backward()
        sgd.step()
    start = flat_parameters(model)
    trainer = Trainer(model, SETTINGS)
    np.testing.assert_allclose(update_of(trainer, start), flat_parameters(twin) - start, atol=1e-6)
    assert trainer.changed_tensors() == []


def test_a_frozen_layer_is_bit_equal_after_training():
    model = two_layers()
    trainer = Trainer(model, SETTINGS)
    assert update_of(trainer).any()
    for name, tensor in fixed_tensors(trainer._model).items():
        assert torch.equal(tensor, model.get_parameter(name))


def test_a_tied_parameter_counts_once():
    model = Tied()
    assert layout_of(model).names == ("embedding.weight", "output.bias")
    set_parameters(model, np.arange(30, dtype="f4"))
    assert model.output.weight[5, 3] == 23
    assert list(model_arrays(model, flat_parameters(model))) == ["embedding.weight", "output.bias"]


def test_two_tensors_in_one_memory_are_refused():
    model = Tied()
    model.output.weight = nn.Parameter(model.embedding.weight.data)
    with pytest.raises(SettingError, match=r"output.weight and embedding.weight .* in one memory"):
        check_trainable(model)


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["2.*"], ("2.weight", "2.bias")),
        (["*bias"], ("0.bias", "2.bias")),
        (["0.weight", "2.b*"], ("0.weight", "2.bias")),
    ],
)
def test_patterns_choose_what_trains_and_freeze_the_rest(patterns, names):
    model = two_layers()
    choose_trained(model, patterns)
    assert layout_of(model).names == names


def test_either_name_of_a_tied_parameter_chooses_it():
    model = Tied()
    choose_trained(model, ["output.weight"])
    assert layout_of(model).names == ("embedding.weight",)


def test_a_pattern_that_matches_nothing_is_refused_with_the_names():
    with pytest.raises(
        SettingError,
        match=r"^trainable is \['head.\*'\], but 'head.\*' matches no.*0.weight, 0.bias, 2.weight, 2.bias",
    ):
        choose_trained(two_layers(), ["head.*"])


def cast(model):
    model[2].half()


def lazy(model):
    model[0] = nn.LazyLinear(5)


def freeze(model):
    model.requires_grad_(False)


def sparse(model):
    model.register_buffer("adjacency", torch.eye(3).to_sparse())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (cast, "2.weight of the model is torch.float16; what trains must be float32"),
        (lazy, "no shape yet"),
        (freeze, "no parameter of the model trains"),
        (sparse, "adjacency of the model is a torch.sparse_coo tensor"),
    ],
)
def test_models_that_cannot_be_trained_are_refused(change, said):
    model = two_layers()
    change(model)
    with pytest.raises(SettingError, match=said):
        Trainer(model, SETTINGS)


def normalised(*, frozen=False, evaluated=False, affine=True):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5, affine=affine), nn.Linear(5, 3))
    model[1].running_mean.fill_(0.25)
    model[1].requires_grad_(not frozen)
    model[1].train(not evaluated)
    return model


@pytest.mark.parametrize("how", [{}, {"affine": False}, {"affine": False, "frozen": True}], ids=str)
def test_batch_norm_that_would_follow_the_clients_is_refused(how):
    model = normalised(**how)
    with pytest.raises(SettingError, match=r"buffers: the running statistics of 1 follow.*GroupNorm"):
        Trainer(model, SETTINGS)


def test_looking_whether_a_model_can_be_trained_leaves_its_modes_as_they_are():
    model = normalised(frozen=True).eval()
    model[0].train()
    check_trainable(model)
    assert [module.training for module in model.modules()] == [False, True, False, False]


@pytest.mark.parametrize("how", [{"frozen": True}, {"evaluated": True}], ids=str)
def test_batch_norm_at_rest_trains_in_evaluation_mode_and_stays_bit_equal(how):
    model = normalised(**how)
    trainer = Trainer(model, SETTINGS)
    assert update_of(trainer).any()
    assert trainer._model.training
    assert not trainer._model[1].training
    assert trainer.changed_tensors() == []
    assert torch.equal(trainer._model[1].running_mean, model[1].running_mean)


def test_batch_norm_without_running_statistics_trains():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False))
    trainer = Trainer(model, SETTINGS)
    assert update_of(trainer).any()
    assert trainer.changed_tensors() == []


class Scaled(nn.Sequential):
    """Holds a constant buffer and a frozen weight, and changes what `change` says in training."""

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


def in_place(model):
    model.factor.mul_(1.5)


def behind_the_version(model):
    model.factor.data[0] = 7.0


def frozen_weight(model):
    model[0].weight.data.mul_(1.5)


def frozen_elsewhere(model):
    model[0].weight.data = torch.ones_like(model[0].weight)


def sign_of_zero(model):
    model.zeros.neg_()


def other_tensor(model):
    model.factor = torch.full((3,), 3.0)


@pytest.mark.parametrize(
    "change", [in_place, behind_the_version, frozen_weight, frozen_elsewhere, sign_of_zero, other_tensor]
)
def test_a_change_of_what_does_not_train_is_found(change):
    trainer = Trainer(Scaled(change), SETTINGS)
    assert trainer.changed_tensors() == []
    start = flat_parameters(Scaled())
    first = update_of(trainer, start)
    assert trainer.changed_tensors() != []
    np.testing.assert_array_equal(update_of(trainer, start), first)  # the model is as it was made again


def test_constant_buffers_train_and_are_stored_where_they_count_to_the_state():
    model = Scaled()
    trainer = Trainer(model, SETTINGS)
    assert update_of(trainer).any()
    assert trainer.changed_tensors() == []
    arrays = model_arrays(model, flat_parameters(model))
    assert list(arrays) == ["0.weight", "0.bias", "1.weight", "1.bias", "factor"]
    other = Scaled()
    other.factor.zero_()
    set_arrays(other, arrays)
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True)
    )


def test_the_digest_tells_every_bit_of_the_fixed_part_and_nothing_of_what_trains():
    model, same = Scaled(), Scaled()
    same.load_state_dict(model.state_dict())
    with torch.no_grad():
        same[1].weight.add_(1)
    digest = Trainer(model, SETTINGS).fixed_digest
    assert digest == Trainer(same, SETTINGS).fixed_digest == digest_tensors(fixed_tensors(model))
    for change in (in_place, frozen_weight, sign_of_zero):
        other = copy.deepcopy(same)
        with torch.no_grad():
            change(other)
        assert Trainer(other, SETTINGS).fixed_digest != digest
    assert Trainer(two_layers(frozen=False), SETTINGS).fixed_digest == ""


def saved(path, **arrays):
    np.savez(path, **arrays)
    return path


def test_a_file_gives_the_weights_whose_names_it_has_and_leaves_the_others(tmp_path):
    model, before = two_layers().requires_grad_(True), two_layers()
    weight = np.arange(20, dtype="f8").reshape(5, 4)
    start_from(model, saved(tmp_path / "start.npz", **{"0.weight": weight, "else": np.ones(3)}))
    np.testing.assert_array_equal(model[0].weight.detach(), weight)
    assert torch.equal(model[2].weight, before[2].weight)


def test_a_file_that_lacks_what_is_frozen_is_refused_for_it_would_stay_random(tmp_path):
    """As of a file whose names have the prefix `module.`, but for one."""
    model, before = two_layers().requires_grad_(True), two_layers()
    model[0].requires_grad_(False)
    arrays = {"0.bias": np.ones(5), "module.0.weight": np.ones((5, 4))}
    with pytest.raises(
        SettingError, match=r"which lacks 0.weight: frozen, it would stay random; .*module.0.weight"
    ):
        start_from(model, saved(tmp_path / "start.npz", **arrays))
    assert torch.equal(model[0].bias, before[0].bias)
    start_from(model, saved(tmp_path / "whole.npz", **arrays, **{"0.weight": np.ones((5, 4))}))
    assert bool((model[0].weight == 1).all())


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"else": np.ones(3)}, "holds else, and nothing of the model's"),
        ({}, "holds no array"),
        ({"0.weight": np.ones((4, 5))}, r"0.weight has the shape \(4, 5\) of float64; it must be \(5, 4\)"),
        ({"0.weight": np.full((5, 4), np.nan)}, "0.weight holds values that are not finite"),
        ({"0.bias": np.array(list("abcde"))}, "0.bias holds values that are not finite"),
        ({"0.bias": np.array([{}] * 5)}, "cannot be read"),
    ],
    ids=str,
)
def test_files_that_do_not_fit_are_refused_and_leave_the_model_as_it_was(tmp_path, arrays, said):
    model, before = two_layers().requires_grad_(True), two_layers()
    with pytest.raises(SettingError, match=f"^start is '.*{said}"):
        start_from(
            model,
            saved(
                tmp_path / "start.npz",
                **{"2.bias": np.ones(3)} | arrays if "else" not in arrays and arrays else arrays,
            ),
        )
    assert torch.equal(flat(model), flat(before))


def flat(model):
    return nn.utils.parameters_to_vector(model.parameters())


def test_a_start_that_is_no_npz_is_refused(tmp_path):
    (tmp_path / "text").write_text("weights")
    for path, said in ((tmp_path / "missing.npz", "is no file"), (tmp_path / "text", "cannot be read")):
        with pytest.raises(SettingError, match=f"^start is '.*{said}"):
            start_from(two_layers(), path)


@pytest.mark.parametrize("head", zip_heads.HEADS)
def test_a_start_with_a_damaged_head_is_refused(tmp_path, head):
    path = saved(tmp_path / "start.npz", weight=np.zeros(3))
    path.write_bytes(zip_heads.flipped(path.read_bytes(), head))
    with pytest.raises(SettingError, match=r"^start is .* cannot be read"):
        start_from(two_layers(), path)


def test_two_values_of_a_tied_parameter_are_refused(tmp_path):
    path = saved(
        tmp_path / "t.npz", **{"embedding.weight": np.ones((6, 4)), "output.weight": np.zeros((6, 4))}
    )
    with pytest.raises(SettingError, match="differ, but are one parameter"):
        start_from(Tied(), path)


def test_a_model_is_built_from_its_start_and_with_what_trains(tmp_path):
    path = saved(tmp_path / "start.npz", **{"1.weight": np.full((10, 4), 0.5)})
    model = build("logistic", input_shape=(2, 2), classes=10, seed=0, start=path, trainable=["*.bias"])
    assert layout_of(model).names == ("1.bias",)
    assert (model[1].weight == 0.5).all()
    plain = build("logistic", input_shape=(2, 2), classes=10, seed=0)
    assert torch.equal(model[1].bias, plain[1].bias)  # the seed's own
