"""How a client trains, each setting against a slow twin in plain torch, and what it leaves behind: nothing."""

import numpy as np
import pytest
import torch
from torch import nn

from client.app import Resident, Sent
from client.data import Examples
from client.parameters import flat_parameters, layout_of
from client.scoring import find_loss
from client.settings import TrainingSettings
from client.training import Trainer
from fedmf.errors import SettingError
from plans import KEY, small_plan

CLIENTS = 3


def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def examples(client=0, count=11, shape=(2, 2), classes=3):
    rng = np.random.default_rng(client)
    return rng.normal(size=(count, *shape)).astype("f4"), rng.integers(0, classes, count)


def settings(**given):
    return TrainingSettings(**{"learning_rate": 0.3, "batch_size": 4, "epochs": 2, "device": "cpu"} | given)


def turn(trainer, client=0, start=None, generator=np.random.PCG64):
    start = flat_parameters(network()) if start is None else start
    return trainer.update(start, *examples(client), order=np.random.Generator(generator(client)))


def test_a_loss_of_a_user_and_a_layer_that_is_not_as_written_are_code_that_could_keep_something():
    changed = network()
    changed[2].forward = torch.tanh
    known = [Trainer(*given, "classification").is_known for given in (
        (network(), settings()), (network(), settings(loss="users_own:hinge")), (changed, settings()),
    )]  # fmt: skip
    assert known == [True, False, False]


def twin_update(given, make_optimizer, client=0):
    """Plain torch: a new model and a new torch.optim optimizer over its parameters for each client."""
    model = network()
    start, before = [parameter.detach().clone() for parameter in model.parameters()], flat_parameters(model)
    optimizer = make_optimizer(model.parameters())
    (x, y), order, loss = (
        examples(client),
        np.random.default_rng(client),
        find_loss(given.loss, "classification"),
    )
    batches = []
    for _ in range(given.epochs):
        shuffled = order.permutation(len(x))
        batches += [shuffled[i : i + given.batch_size] for i in range(0, len(x), given.batch_size)]
    for batch in batches[: given.max_steps]:
        optimizer.zero_grad()
        value = loss(model(torch.from_numpy(x[batch])), torch.from_numpy(y[batch]))
        distance = sum(((w - s) ** 2).sum() for w, s in zip(model.parameters(), start, strict=True))
        (value + given.proximal / 2 * distance).backward()
        optimizer.step()
    return flat_parameters(model) - before


SGD, ADAM = {}, {"optimizer": "adam", "learning_rate": 0.01}
SETTINGS = {
    "momentum": (SGD | {"momentum": 0.9}, {"momentum": 0.9}),
    "decay": (SGD | {"weight_decay": 0.1}, {"weight_decay": 0.1}),
    "both": (SGD | {"weight_decay": 0.1, "momentum": 0.5}, {"weight_decay": 0.1, "momentum": 0.5}),
    "adam": (ADAM, {"weight_decay": 0.0}),
    "adam with decay": (ADAM | {"weight_decay": 0.3}, {"weight_decay": 0.3}),
    "FedProx": (SGD | {"proximal": 0.7}, {}),
    "FedProx with adam": (ADAM | {"proximal": 0.7}, {"weight_decay": 0.0}),
    "one step": (SGD | {"max_steps": 1}, {}),
    "steps into the second epoch": (SGD | {"max_steps": 4}, {}),
    "more steps than there are": (SGD | {"max_steps": 100}, {}),
    "mse": (SGD | {"loss": "mse"}, {}),
    "bce": (SGD | {"loss": "bce_with_logits"}, {}),
    "custom loss": (SGD | {"loss": "users_own:hinge"}, {}),
    "custom loop": (SGD | {"trainer": "users_own:whole_batch", "batch_size": 11}, {}),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_each_setting_is_torchs_own_with_a_new_state_for_every_client(name):
    given, more = settings(**SETTINGS[name][0]), SETTINGS[name][1]
    kind = torch.optim.AdamW if given.optimizer == "adam" else torch.optim.SGD
    trainer, start = Trainer(network(), given, "classification"), flat_parameters(network())
    start.setflags(write=False)
    for client in range(CLIENTS):
        expected = twin_update(given, lambda p: kind(p, lr=given.learning_rate, **more), client)
        np.testing.assert_allclose(turn(trainer, client, start), expected, atol=2e-6)


def test_autocast_computes_the_model_in_bfloat16_and_keeps_float32_weights():
    types, model = [], network()
    model[1].register_forward_hook(lambda module, inputs, output: types.append(output.dtype))
    close = turn(Trainer(network(), settings(), "classification"))
    found = turn(Trainer(model, settings(autocast="bfloat16"), "classification"))
    assert set(types) == {torch.bfloat16}
    assert found.dtype == np.float32
    assert not np.array_equal(found, close)
    np.testing.assert_allclose(found, close, atol=0.05 * np.abs(close).max())


class Dropping(nn.Sequential):
    """Logistic regression on a part of its inputs."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Dropout(0.5), nn.Linear(4, 3))


class DrawingAnyhow(nn.Module):
    """Draws without a layer that is known to, and keeps what it drew."""

    drawn: list = []  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        self.drawn.append(float(torch.rand(1)))
        return self.linear(x.flatten(1) + torch.randn(1))


@pytest.mark.parametrize(
    "make", [Dropping, DrawingAnyhow, lambda: nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(4, 3))]
)
def test_what_layers_draw_depends_on_client_and_epoch_alone(make):
    model, DrawingAnyhow.drawn = make(), []
    start, philox = flat_parameters(model), np.random.Philox
    trainers = [Trainer(model, settings(epochs=1, batch_size=11), "classification") for _ in range(2)]
    forwards = [turn(trainers[0], client, start, philox) for client in range(CLIENTS)]
    assert len(set(DrawingAnyhow.drawn)) in (0, CLIENTS)  # every client has draws of its own
    torch.manual_seed(99)
    before = torch.get_rng_state()
    backwards = [turn(trainers[1], client, start, philox) for client in reversed(range(CLIENTS))]
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(forwards, backwards[::-1])
    order = np.random.Generator(philox(0))
    assert not np.array_equal(*(trainers[0].update(start, *examples(), order=order) for _ in range(2)))


@pytest.mark.parametrize(
    "kind", ["forward_pre_hook", "forward_hook", "full_backward_pre_hook", "full_backward_hook"]
)
def test_what_a_hook_leaves_in_a_model_reaches_no_other_client(kind):
    model = network()
    getattr(model[3], f"register_{kind}")(lambda module, *given: vars(module).update(called=True))
    trainer = Trainer(model, settings(), "classification")
    turn(trainer)
    assert trainer._model[3].called
    assert not hasattr(trainer._made[3], "called")


class Partly(nn.Module):
    """A layer that the outputs depend on, one that they do not, and a table whose gradients are sparse."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 4)
        self.table = nn.Embedding(5, 3, sparse=True)

    def forward(self, x):
        return self.used(x.flatten(1)) + self.table(torch.zeros(len(x), dtype=torch.long))


@pytest.mark.parametrize("chosen", [{}, {"momentum": 0.9}, {"optimizer": "adam"}, {"proximal": 0.3}], ids=str)
def test_what_the_loss_does_not_depend_on_has_the_gradient_zero(chosen):
    """So it decays as everything does; and the gradient of a table that is sparse is that of the dense one."""
    given, model = settings(learning_rate=0.1, batch_size=11, weight_decay=0.5, **chosen), Partly()
    start, split = flat_parameters(model), layout_of(model).split
    trained = start + turn(Trainer(model, given, "classification"), start=start)
    if not chosen or "optimizer" in chosen:
        unused = split(trained)["unused.weight"]
        np.testing.assert_allclose(unused, split(start)["unused.weight"] * (1 - 0.1 * 0.5) ** 2, rtol=1e-5)
    assert (split(trained)["table.weight"][0] != split(start)["table.weight"][0] * 0.9025).all()
    model.table.sparse = False
    np.testing.assert_allclose(
        trained, start + turn(Trainer(model, given, "classification"), start=start), atol=1e-6
    )


def test_a_turn_overwrites_what_the_turn_before_returned_of_train_but_not_of_update():
    start, trainer = flat_parameters(network()), Trainer(network(), settings(), "classification")
    update = turn(trainer, 0)
    trained = trainer.train(torch.tensor(start), *examples(0), order=np.random.default_rng(0)).numpy()
    np.testing.assert_array_equal(trained - start, update)
    held = update.copy()
    turn(trainer, 1)
    np.testing.assert_array_equal(update, held)
    assert not np.array_equal(trained - start, held)


@pytest.mark.parametrize(
    ("loop", "error"),
    [
        ("fails", "out of luck"),
        (
            "of_another_shape",
            r"1.weight is torch.float32 of shape \(5, 4\); it must be float32 of shape \(6, 4\)",
        ),
        ("no_model", "returned an object of type list"),
        ("in_double", "float64 of shape .*; it must be float32"),
    ],
)
def test_a_custom_loop_that_fails_is_an_error_each_time_and_one_that_diverges_sends_zeros(loop, error):
    def play(name):
        plan, given = small_plan(dimension=51).client_plan, settings(trainer=f"users_own:{name}")
        resident, sent = (
            Resident(lambda: Trainer(network(), given, "classification"), plan),
            Sent(flat_parameters(network()), None),
        )
        return lambda: resident.run(sent, Examples(*examples()), np.random.default_rng(0), KEY)

    fails = play(loop)
    for _ in range(2):
        with pytest.raises((RuntimeError, SettingError), match=error):
            fails()
    kept = play("diverges")()
    assert not kept.is_finite
    assert not kept.values.any()


def test_a_loop_leaves_examples_settings_gradients_and_torchs_modes_as_they_were():
    """Or what one client's data did would be part of the next one's turn."""
    given = settings(trainer="users_own:leaves_traces")
    trainer, data = Trainer(network(), given, "classification"), [examples(client) for client in range(2)]
    kept, start = [array.copy() for client in data for array in client], flat_parameters(network())
    first, _, again = (
        trainer.update(start, *data[client], order=np.random.default_rng(client)) for client in (0, 1, 0)
    )
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32
    for array, before in zip([array for client in data for array in client], kept, strict=True):
        np.testing.assert_array_equal(array, before)
    assert given.learning_rate == 0.3
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"learning_rate": 0.0}, "^learning_rate is 0.0"),
        ({"batch_size": 0}, "^batch_size is 0"),
        ({"device": "tpu"}, "^device is 'tpu'"),
        ({"optimizer": "lbfgs"}, "^optimizer is 'lbfgs'; it must be one of sgd, adam"),
        ({"momentum": 1.0}, "^momentum is 1.0"),
        ({"momentum": 0.9, "optimizer": "adam"}, "^momentum is 0.9, which optimizer=adam does not use"),
        ({"weight_decay": -1.0}, "^weight_decay is"),
        ({"proximal": -0.1}, "^proximal is"),
        ({"max_steps": 0}, "^max_steps is 0"),
        ({"loss": "hinge"}, "^loss is 'hinge'; it must be one of cross_entropy"),
        ({"autocast": "float16"}, "^autocast is 'float16'; it must be one of bfloat16"),
        ({"trainer": "mine"}, "^trainer is 'mine'; it must be the import path"),
        ({"trainer": "a:b", "max_steps": 3}, "^max_steps is 3, which a custom loop need not obey"),
        ({"trainer": "users_own:unannotated"}, "trainer is .*annotate the function with `-> Module`"),
        ({"trainer": "users_own:without_order"}, "must take model, x, y, settings, order"),
        ({"trainer": "users_own:nothing"}, "cannot be imported"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_and_code_that_promises_nothing_are_errors(given, said):
    with pytest.raises(SettingError, match=said):
        Trainer(network(), settings(**given), "classification")


@pytest.mark.gpu
@pytest.mark.parametrize("autocast", [None, "bfloat16"])
def test_gpu_and_cpu_agree_on_every_setting(autocast):
    given = {
        "optimizer": "adam",
        "learning_rate": 0.01,
        "proximal": 0.1,
        "autocast": autocast,
    }
    updates = [
        turn(Trainer(network(), settings(**given, device=device), "classification"))
        for device in ("cpu", "cuda")
    ]
    np.testing.assert_allclose(*updates, atol=1e-4 if autocast is None else 2e-2)


@pytest.mark.gpu
def test_gpu_layers_draw_by_client_and_leave_the_generators_as_they_were():
    start, trainer = (
        flat_parameters(Dropping()),
        Trainer(Dropping(), settings(device="cuda"), "classification"),
    )
    before = torch.cuda.get_rng_state(), torch.get_rng_state()
    first = turn(trainer, 0, start)
    turn(trainer, 1, start)
    np.testing.assert_array_equal(turn(trainer, 0, start), first)
    after = torch.cuda.get_rng_state(), torch.get_rng_state()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
