import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from client.losses import cross_entropy as loss
from client.models import build
from client.parameters import flat_parameters, layout_of
from client.settings import TrainingSettings
from client.training import Trainer
from fedmf.errors import SettingError

SHAPE = {"input_shape": (8, 8), "classes": 10, "seed": 3}


def examples(count=23, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 8, 8)).astype("f4"), rng.integers(0, 10, count)


def slow_update(name, start, x, y, order, settings):
    """Plain PyTorch: a new model, torch.optim.SGD, a loop."""
    model = build(name, **SHAPE)
    torch.nn.utils.vector_to_parameters(torch.from_numpy(start.copy()), model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.learning_rate)
    for _ in range(settings.epochs):
        shuffled = order.permutation(len(x))
        for begin in range(0, len(x), settings.batch_size):
            batch = shuffled[begin : begin + settings.batch_size]
            optimizer.zero_grad()
            loss(model(torch.from_numpy(x[batch])), torch.from_numpy(y[batch])).backward()
            optimizer.step()
    return flat_parameters(model) - start


@pytest.mark.parametrize("name", ["logistic", "mlp", "cnn"])
def test_resident_model_trains_as_plain_pytorch(name):
    settings = TrainingSettings(0.1, batch_size=7, epochs=2)
    trainer = Trainer(build(name, **SHAPE), settings)
    start = flat_parameters(build(name, **SHAPE))
    for client in range(3):  # the third client's update does not depend on the first two
        x, y = examples(seed=client)
        update = trainer.update(start, x, y, order=np.random.default_rng(client))
        expected = slow_update(name, start, x, y, np.random.default_rng(client), settings)
        np.testing.assert_allclose(update, expected, atol=1e-6)


def test_start_may_be_read_only_and_is_left_alone():
    start = flat_parameters(build("logistic", **SHAPE))
    start.setflags(write=False)
    before = start.copy()
    update = Trainer(build("logistic", **SHAPE), TrainingSettings(1.0)).update(
        start, *examples(), order=np.random.default_rng(0)
    )
    assert update.any()
    np.testing.assert_array_equal(start, before)


def test_layout_names_parameters_in_the_order_of_the_vector():
    model = build("logistic", **SHAPE)
    split = layout_of(model).split(flat_parameters(model))
    for name, parameter in model.named_parameters():
        np.testing.assert_array_equal(split[name], parameter.detach().numpy())


def test_models_with_buffers_are_refused():
    with pytest.raises(SettingError, match="buffers"):
        Trainer(torch.nn.BatchNorm1d(3), TrainingSettings(1.0))


@pytest.mark.parametrize(
    "wrong", [{"learning_rate": 0.0}, {"batch_size": 0}, {"epochs": 0}, {"device": "tpu"}], ids=str
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(SettingError, match=f"^{next(iter(wrong))} is"):
        TrainingSettings(**{"learning_rate": 1.0, **wrong})


@pytest.mark.gpu
def test_gpu_trains_as_the_cpu_does():
    settings, start = TrainingSettings(0.1), flat_parameters(build("cnn", **SHAPE))
    updates = [
        Trainer(build("cnn", **SHAPE), TrainingSettings(0.1, device=device)).update(
            start, *examples(), order=np.random.default_rng(0)
        )
        for device in ("cpu", "cuda")
    ]
    assert settings.device == "auto"
    np.testing.assert_allclose(*updates, atol=1e-4)


class Partly(torch.nn.Module):
    """A layer that the outputs depend on, one that they do not, and a table whose gradients are sparse."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.used, self.unused = torch.nn.Linear(64, 10), torch.nn.Linear(4, 4)
        self.table = torch.nn.Embedding(5, 10, sparse=True)

    def forward(self, x):
        return self.used(x.flatten(1)) + self.table(torch.zeros(len(x), dtype=torch.long))


@pytest.mark.parametrize(
    "chosen",
    [{}, {"momentum": 0.9}, {"optimizer": "adam"}, {"proximal": 0.3}],
    ids=["sgd", "momentum", "adam", "proximal"],
)
def test_what_the_loss_does_not_depend_on_has_the_gradient_zero(chosen):
    """So it decays as everything does; and the gradient of a table that is sparse is that of the dense one."""
    settings = TrainingSettings(0.1, batch_size=23, epochs=2, weight_decay=0.5, **chosen)
    model, (x, y) = Partly(), examples()
    start = flat_parameters(model)
    trainer = Trainer(model, settings)
    trained = start + trainer.update(start, x, y, order=np.random.default_rng(0))
    split = layout_of(model).split
    if not chosen or "optimizer" in chosen:
        unused = split(trained)["unused.weight"]
        np.testing.assert_allclose(unused, split(start)["unused.weight"] * (1 - 0.1 * 0.5) ** 2, rtol=1e-5)
    assert (split(trained)["table.weight"][0] != split(start)["table.weight"][0] * 0.9025).all()
    model.table.sparse = False
    dense = Trainer(model, settings).update(start, x, y, order=np.random.default_rng(0))
    np.testing.assert_allclose(trained, start + dense, atol=1e-6)
    assert trainer.changed_tensors() == []


class Recomputing(torch.nn.Module):
    """A model that computes its inner layer anew in the backward pass, which `torch.autograd.grad` refuses."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.outer = torch.nn.Linear(64, 12), torch.nn.Linear(12, 10)
        self.is_checkpointed = True

    def forward(self, x):
        x = x.flatten(1).requires_grad_()
        if self.is_checkpointed:
            return self.outer(checkpoint(self.inner, x, use_reentrant=True))
        return self.outer(self.inner(x))


def test_a_model_that_recomputes_in_its_backward_pass_trains_as_one_that_does_not():
    model = Recomputing()
    start, (x, y) = flat_parameters(model), examples()
    updates = []
    for model.is_checkpointed in (True, False):
        trainer = Trainer(model, TrainingSettings(0.1))
        updates.append(trainer.update(start, x, y, order=np.random.default_rng(0)))
    np.testing.assert_allclose(*updates, atol=1e-7)
    assert updates[0].any()


def test_a_turn_overwrites_what_the_turn_before_returned_of_train_but_not_of_update():
    start = flat_parameters(build("logistic", **SHAPE))
    trainer = Trainer(build("logistic", **SHAPE), TrainingSettings(0.1, device="cpu"))
    turns = [(start, *examples(seed=seed)) for seed in range(2)]
    update = trainer.update(*turns[0], order=np.random.default_rng(0))
    trained = trainer.train(*turns[0], order=np.random.default_rng(0))
    np.testing.assert_array_equal(trained - start, update)
    held = update.copy()
    assert trainer.train(*turns[1], order=np.random.default_rng(1)) is not update
    np.testing.assert_array_equal(update, held)
    assert not np.array_equal(trained - start, held)
