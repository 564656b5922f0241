"""How a client trains, each setting against a slow twin in plain torch."""

import numpy as np
import pytest
import torch
from torch import nn

from client.data import IGNORED_TARGET
from client.losses import find_loss
from client.parameters import flat_parameters
from client.privatize import privatize
from client.resident import Resident
from client.settings import TrainingSettings
from client.training import Trainer
from fedmf.errors import SettingError
from plans import KEY, small_plan

CLIENTS = 3


def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def examples(client=0, count=11):
    rng = np.random.default_rng(client)
    return rng.normal(size=(count, 2, 2)).astype("f4"), rng.integers(0, 3, count)


def settings(**given):
    return TrainingSettings(**{"learning_rate": 0.3, "batch_size": 4, "epochs": 2, "device": "cpu"} | given)


def update(trainer, client=0, model=None, **kwargs):
    start = flat_parameters(model or network())
    given, order = examples(client, **kwargs), np.random.default_rng(client)
    if isinstance(trainer, Resident):
        with trainer.turn() as player:
            return player.trainer.update(start, *given, order=order)
    return trainer.update(start, *given, order=order)


def twin_update(given, make_optimizer, client=0, steps=None, proximal=0.0):
    """Plain torch: a new model and a new torch.optim optimizer over its parameters for each client."""
    model = network()
    start = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = make_optimizer(model.parameters())
    (x, y), order, loss = examples(client), np.random.default_rng(client), find_loss(given.loss)
    batches = []
    for _ in range(given.epochs):
        shuffled = order.permutation(len(x))
        batches += [shuffled[i : i + given.batch_size] for i in range(0, len(x), given.batch_size)]
    for batch in batches[:steps]:
        optimizer.zero_grad()
        value = loss(model(torch.from_numpy(x[batch])), torch.from_numpy(y[batch]))
        distance = sum(((w - s) ** 2).sum() for w, s in zip(model.parameters(), start, strict=True))
        (value + proximal / 2 * distance).backward()
        optimizer.step()
    return flat_parameters(model) - flat_parameters(network())


OPTIMIZERS = {
    "sgd": ({}, lambda p: torch.optim.SGD(p, lr=0.3)),
    "sgd with momentum": ({"momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9)),
    "sgd with decay": ({"weight_decay": 0.1}, lambda p: torch.optim.SGD(p, lr=0.3, weight_decay=0.1)),
    "sgd with both": (
        {"weight_decay": 0.1, "momentum": 0.5},
        lambda p: torch.optim.SGD(p, lr=0.3, weight_decay=0.1, momentum=0.5),
    ),
    "adam": (
        {"optimizer": "adam", "learning_rate": 0.01},
        lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.0),
    ),
    "adam with decay": (
        {"optimizer": "adam", "learning_rate": 0.01, "weight_decay": 0.3},
        lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.3),
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_optimizer_is_torchs_own_made_anew_for_every_client(name):
    given, make = settings(**OPTIMIZERS[name][0]), OPTIMIZERS[name][1]
    trainer = Trainer(network(), given)
    for client in range(CLIENTS):
        np.testing.assert_allclose(update(trainer, client), twin_update(given, make, client), atol=2e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_fedprox_adds_mu_halves_times_the_squared_distance_to_the_loss(optimizer):
    given = settings(proximal=0.7, optimizer=optimizer, learning_rate=0.05)
    make = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer]
    for client in range(CLIENTS):
        expected = twin_update(given, lambda p: make(p, lr=0.05), client, proximal=0.7)
        np.testing.assert_allclose(update(Trainer(network(), given), client), expected, atol=2e-6)
        plain = update(Trainer(network(), settings(optimizer=optimizer, learning_rate=0.05)), client)
        assert np.linalg.norm(expected) < np.linalg.norm(plain)


@pytest.mark.parametrize("steps", [1, 3, 4, 6, 100])
def test_a_client_takes_at_most_max_steps_through_all_its_epochs(steps):
    given = settings(max_steps=steps)
    expected = twin_update(given, lambda p: torch.optim.SGD(p, lr=0.3), steps=steps)
    np.testing.assert_allclose(update(Trainer(network(), given)), expected, atol=2e-6)


@pytest.mark.parametrize("loss", ["mse", "bce_with_logits", "own_training:hinge"])
def test_the_chosen_loss_is_trained(loss):
    given = settings(loss=loss)
    expected = twin_update(given, lambda p: torch.optim.SGD(p, lr=0.3))
    np.testing.assert_allclose(update(Trainer(network(), given)), expected, atol=2e-6)


@pytest.mark.parametrize("loss", ["cross_entropy", "mse", "bce_with_logits"])
@pytest.mark.parametrize("accumulate", [2, 3, 4])
def test_accumulated_gradients_are_those_of_the_whole_batch(loss, accumulate):
    """Eleven examples in batches of four: the last is short. Some targets are ignored, in one part all of them."""
    x, y = examples()
    y = y.copy()
    order = np.random.default_rng(0).permutation(11)
    y[order[[0, 1, 5, 8]]] = IGNORED_TARGET
    updates = [
        Trainer(network(), settings(loss=loss, epochs=1, accumulate=parts)).update(
            flat_parameters(network()), x, y, order=np.random.default_rng(0)
        )
        for parts in (1, accumulate)
    ]
    np.testing.assert_allclose(*updates, atol=1e-6)
    assert updates[0].any()


def test_each_part_of_a_batch_is_computed_on_its_own():
    sizes = []
    model = network()
    model[1].register_forward_hook(lambda module, inputs, output: sizes.append(len(output)))
    Trainer(model, settings(accumulate=2, epochs=1)).update(
        flat_parameters(network()), *examples(), order=np.random.default_rng(0)
    )
    assert sizes == [2, 2, 2, 2, 2, 1]


def test_autocast_computes_the_model_in_bfloat16_and_keeps_float32_weights():
    types = []
    model = network()
    model[1].register_forward_hook(lambda module, inputs, output: types.append(output.dtype))
    start, close = flat_parameters(network()), update(Trainer(network(), settings()))
    found = Trainer(model, settings(autocast="bfloat16")).update(
        start, *examples(), order=np.random.default_rng(0)
    )
    assert set(types) == {torch.bfloat16}
    assert found.dtype == np.float32
    assert not np.array_equal(found, close)
    np.testing.assert_allclose(found, close, atol=0.05 * np.abs(close).max())


class Dropping(nn.Sequential):
    """Logistic regression on a part of its inputs."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Dropout(0.5), nn.Linear(4, 3))


class DrawingAnyhow(nn.Module):
    """Draws without a layer that would say so."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(x.flatten(1) + torch.randn(1))


@pytest.mark.parametrize("make", [Dropping, DrawingAnyhow])
def test_what_layers_draw_depends_on_client_and_epoch_alone(make):
    model = make()
    start = flat_parameters(model)

    def turn(trainer, client, seed):
        return trainer.update(start, *examples(), order=np.random.Generator(np.random.Philox(key=seed)))

    first, second = Trainer(model, settings()), Trainer(model, settings())
    forwards = [turn(first, client, client) for client in range(CLIENTS)]
    torch.manual_seed(99)
    backwards = [turn(second, client, client) for client in reversed(range(CLIENTS))][::-1]
    np.testing.assert_array_equal(forwards, backwards)
    data_order = np.random.Generator(np.random.Philox(key=0))
    other_epoch = Trainer(model, settings(batch_size=11, epochs=1))
    assert not np.array_equal(
        other_epoch.update(start, *examples(), order=data_order),
        other_epoch.update(start, *examples(), order=data_order),
    )


def test_layers_that_draw_leave_the_global_generator_as_it_was():
    trainer, start = Trainer(Dropping(), settings()), flat_parameters(Dropping())
    before = torch.get_rng_state()
    trainer.update(start, *examples(), order=np.random.default_rng(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_every_client_and_epoch_has_draws_of_its_own():
    drawn = []

    class Noting(DrawingAnyhow):
        def forward(self, x):
            drawn.append(float(torch.rand(1)))
            return super().forward(x)

    trainer = Trainer(Noting(), settings(epochs=1, batch_size=11))
    for key in (0, 1, 2, 0):
        order = np.random.Generator(np.random.Philox(key=key))
        trainer.update(flat_parameters(trainer._model), *examples(), order=order)
    assert len(set(drawn)) == 3
    assert drawn[0] == drawn[3]


class NotingOrder(np.random.Generator):
    """Keeps the orders that it gave."""

    def permutation(self, count):
        """Return a random order of so many."""
        self.given = [*getattr(self, "given", []), super().permutation(count)]
        return self.given[-1]


def test_a_generator_for_layers_leaves_the_data_order_as_it_is():
    drawing, plain = NotingOrder(np.random.PCG64(3)), NotingOrder(np.random.PCG64(3))
    Trainer(Dropping(), settings()).update(flat_parameters(Dropping()), *examples(), order=drawing)
    Trainer(network(), settings()).update(flat_parameters(network()), *examples(), order=plain)
    np.testing.assert_array_equal(drawing.given, plain.given)


def test_a_loop_of_ones_own_is_ours_where_it_does_the_same():
    ours = Trainer(network(), settings(batch_size=11))
    own = Trainer(network(), settings(batch_size=11, trainer="own_training:whole_batch"))
    for client in range(CLIENTS):
        np.testing.assert_allclose(update(own, client), update(ours, client), atol=2e-6)


def test_a_loop_of_ones_own_finds_no_gradient_of_the_client_before():
    trainer = Trainer(network(), settings(trainer="own_training:only_adds_gradients"))
    first = update(trainer, 1)
    update(trainer, 2)
    np.testing.assert_array_equal(update(trainer, 1), first)


@pytest.mark.parametrize(
    ("loop", "error"),
    [
        ("raising", "out of luck"),
        ("other_shape", r"1.weight has the shape \(5, 4\); it must be \(6, 4\)"),
        ("no_model", "returned a list"),
        ("in_double", "float64; what trains must stay float32"),
    ],
)
def test_a_loop_of_ones_own_that_fails_says_why_and_leaves_the_next_client_alone(loop, error):
    plan = small_plan(dimension=51).client_plan
    resident = Resident(lambda: Trainer(network(), settings(trainer=f"own_training:{loop}")), plan)
    for _ in range(2):
        with pytest.raises((RuntimeError, SettingError), match=error):
            update(resident)


def test_a_loop_of_ones_own_that_diverges_sends_zeros():
    plan = small_plan(dimension=51)
    found = update(Trainer(network(), settings(trainer="own_training:not_finite")))
    assert np.isnan(found).any()
    client = plan.client_plan
    sent = privatize(
        found,
        bounds=client.bounds,
        rotation=client.rotation,
        keep_probability=client.keep_probability,
        mask_key=KEY,
    )
    assert not sent.any()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"optimizer": "lbfgs"}, "^optimizer is 'lbfgs'; it must be one of sgd, adam"),
        ({"momentum": 1.0}, "^momentum is 1.0"),
        ({"momentum": 0.9, "optimizer": "adam"}, "^momentum is 0.9, which optimizer=adam does not use"),
        ({"weight_decay": -1.0}, "^weight_decay is"),
        ({"proximal": -0.1}, "^proximal is"),
        ({"max_steps": 0}, "^max_steps is 0"),
        ({"loss": "hinge"}, "^loss is 'hinge'; it must be one of cross_entropy"),
        ({"accumulate": 0}, "^accumulate is 0"),
        ({"accumulate": 5}, "^accumulate is 5, but batch_size is 4"),
        ({"autocast": "float16"}, "^autocast is 'float16'; it must be one of bfloat16"),
        ({"trainer": "mine"}, "^trainer is 'mine'; it must be the import path"),
        ({"trainer": "a:b", "proximal": 0.1}, "^proximal is 0.1, which a loop of one's own"),
        ({"trainer": "a:b", "optimizer": "adam"}, "^optimizer is 'adam', which a loop"),
        ({"trainer": "a:b", "max_steps": 3}, "^max_steps is 3, which a loop"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_together_are_refused(given, said):
    with pytest.raises(SettingError, match=said):
        settings(**given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"trainer": "own_training:unannotated"}, "trainer is .*annotate the function with `-> Module`"),
        ({"trainer": "own_training:without_order"}, "does not take order"),
        ({"trainer": "own_training:nothing"}, "cannot be imported"),
        ({"loss": "own_training:unannotated"}, "loss is .*annotate the function with `-> Tensor`"),
    ],
    ids=str,
)
def test_code_that_promises_nothing_is_not_called(given, said):
    with pytest.raises(SettingError, match=said):
        Trainer(network(), settings(**given))


@pytest.mark.gpu
@pytest.mark.parametrize("autocast", [None, "bfloat16"])
def test_gpu_and_cpu_agree_on_every_setting(autocast):
    given = {
        "optimizer": "adam",
        "learning_rate": 0.01,
        "proximal": 0.1,
        "accumulate": 2,
        "autocast": autocast,
    }
    updates = [update(Trainer(network(), settings(**given, device=device))) for device in ("cpu", "cuda")]
    np.testing.assert_allclose(*updates, atol=1e-4 if autocast is None else 2e-2)


@pytest.mark.gpu
def test_gpu_layers_draw_by_client_and_leave_the_generators_as_they_were():
    model = Dropping()
    start, trainer = flat_parameters(model), Trainer(model, settings(device="cuda"))
    before = torch.cuda.get_rng_state(), torch.get_rng_state()

    def turn(seed):
        return trainer.update(start, *examples(), order=np.random.default_rng(seed))

    first = turn(0)
    turn(1)
    np.testing.assert_array_equal(turn(0), first)
    assert all(
        torch.equal(a, b)
        for a, b in zip(before, (torch.cuda.get_rng_state(), torch.get_rng_state()), strict=True)
    )


def test_a_loop_leaves_examples_settings_and_torchs_modes_as_they_were():
    """Or what one client's data did would be part of the next one's turn."""
    settings = TrainingSettings(0.1, trainer="own_training:leaves_traces")
    model = nn.Linear(4, 2)
    trainer, start = Trainer(model, settings), flat_parameters(model)
    x, y = np.ones((3, 4), "f4"), np.array([0, 1, 1])
    first = trainer.update(start, x, y, order=np.random.default_rng(0))
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32
    np.testing.assert_array_equal(x, 1)
    np.testing.assert_array_equal(y, [0, 1, 1])
    assert settings.learning_rate == 0.1
    np.testing.assert_array_equal(first, trainer.update(start, x, y, order=np.random.default_rng(0)))
