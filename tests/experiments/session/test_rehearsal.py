"""A model or data set that would fail at every client is one sentence, exit 2, and nothing written."""

import contextlib
import random
from pathlib import Path

import numpy as np
import pytest
import torch

import own_models
from client.losses import cross_entropy
from client.rehearsal import rehearse
from client.training import Trainer
from experiments.cli.command import guard
from experiments.settings.experiment import build
from fedmf.errors import SettingError
from runs import composed, simulate

pytestmark = pytest.mark.long

IMAGES = ("dataset=custom", "dataset.name=own_models:people", "model=custom")
SMALL = ("population.cohort_size=3", "population.epochs=1", "output=json")
HERE = str(Path(own_models.__file__))
TURN = "a client's turn on 4 test examples"
WRONG = {
    "RaisesInConstructor": f"which could not be made: KeyError: 'weights.pt' ({HERE}:",
    "Raises": f"cannot take float32 inputs of shape [4, 8, 8]: ValueError: the layers do not fit ({HERE}:",
    "Exits": f"SystemExit: 0 ({HERE}:",
    "NotANumber": "before any training that are no finite real numbers",
    "GradientNotANumber": f"{TURN} gave an update that is not finite",
    "FewOutputs": "returns the shape [4, 5] for inputs of shape [4, 8, 8] in evaluation mode; it must return one tensor of shape [4, 10]",
    "KeywordNeeded": "forward() missing 1 required keyword-only argument: 'mask'",
    "Pair": "the model returns a tuple for inputs of shape [4, 8, 8] in evaluation mode; it must return one tensor",
    "Detached": f"{TURN} failed: RuntimeError: element 0 of tensors does not require grad",
    "Flat": f"{TURN} left every parameter as it was",
    "DetachedBackbone": "backbone.weight, backbone.bias of the model would be sent and noised, but the loss does not",
    "Whole": "the model returns torch.int64 values",
    "AllFrozen": "no parameter",
    "OtherInEvaluation": "the model returns the shape [4] ",
    "Uncopied": "RuntimeError: Only Tensors created explicitly",
    "Single too_many_classes": "the test set of dataset tokens holds the token 9; with classes=9 it must be 0 to 8.",
    "Single other_shape": "The task is next_token, but inputs are int64 [5] and targets [4]",
    "Single nothing_counts": "has no target that the accuracy counts",
}


def refused(directory, capsys, *overrides):
    """The one sentence with which a run is refused that writes nothing."""
    settings = composed(f"run.directory={directory}", *SMALL, *IMAGES, *overrides)
    assert guard(lambda: simulate(settings)) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert not directory.exists()
    return error


@pytest.mark.parametrize("case", WRONG)
def test_a_model_or_data_set_that_cannot_be_trained_is_one_sentence_and_nothing_written(
    tmp_path, capsys, case
):
    name, _, data = case.partition(" ")
    given = (f"model.name=own_models:{name}", f"dataset.name=own_models:{data or 'people'}")
    assert WRONG[case] in refused(tmp_path / "r", capsys, *given)


def rehearsed(name, *overrides, trainer=None, **changes):
    """Rehearse a model of `own_models`, as it is or with something changed."""
    experiment = build(composed(*SMALL, *IMAGES, f"model.name=own_models:{name}", *overrides))
    make = (
        experiment.make_trainer if trainer is None else lambda: trainer(experiment.model, experiment.training)
    )
    given = {
        "dataset": experiment.dataset,
        "model": experiment.model,
        "start": experiment.initial,
        "loss": cross_entropy,
        "batch_size": 3,
    }
    return rehearse(**given | changes, make_trainer=make)


def trainer_whose(turn):
    """Return a custom trainer that makes of the true update what `turn` does."""

    class Own(Trainer):
        def update(self, *arguments, **keywords):
            return turn(super().update(*arguments, **keywords))

    return Own


def fail(update):
    raise IndexError("no such batch")


@pytest.mark.parametrize(("given", "changes", "said"), [
    ("Linear", {"trainer": trainer_whose(fail)}, r"on 3 test examples failed: IndexError: no such batch \(.*rehearsal.py"),
    ("Linear client.loss=own_training:of_each", {}, "on 3 test examples failed: RuntimeError: grad can be implicitly created only"),
    ("Linear client.loss=own_training:infinite", {}, "on 3 test examples gave an update that is not finite"),
    ("Linear client.trainer=own_training:trains_nothing", {}, "left every parameter as it was"),
    ("RaisesOnMany", {}, r"cannot take .* \[4, 8, 8\]: ValueError: too many"),  # as many as in a run
])  # fmt: skip
def test_trainer_turn_loss_and_score_of_the_run_itself_are_rehearsed(given, changes, said):
    with pytest.raises(SettingError, match=said):
        rehearsed(*given.split(), **changes)


class Scribbling(Trainer):
    """A trainer of one's own that draws when it is made, and writes into the examples that it is given."""

    def __init__(self, *arguments):
        torch.rand(1)
        super().__init__(*arguments)

    def update(self, start, x, y, *, order):
        x[:], y[:] = 7, 7
        return super().update(start, x, y, order=order)


@pytest.mark.parametrize("name", ["Draws", "GradientNotANumber"], ids=["passes", "is refused"])
def test_a_rehearsal_leaves_model_data_and_global_generators_bit_for_bit_as_they_were(name):
    experiment = build(composed(*SMALL, *IMAGES, f"model.name=own_models:{name}"))

    def everything():
        held = [*experiment.model.parameters(), torch.random.get_rng_state()]
        arrays = [experiment.dataset.test.x, experiment.dataset.test.y, experiment.initial]
        states = (random.getstate(), str(np.random.get_state()))  # noqa: NPY002
        return [tensor.detach().numpy().tobytes() for tensor in held], [a.tobytes() for a in arrays], states

    before, mode = everything(), experiment.model.training
    own = {"dataset": experiment.dataset, "model": experiment.model, "start": experiment.initial}
    with contextlib.nullcontext() if name == "Draws" else pytest.raises(SettingError):
        rehearsed(name, trainer=lambda model, training: Scribbling(experiment.model, training), **own)
    assert everything() == before
    assert experiment.model.training is mode
    assert all(parameter.grad is None for parameter in experiment.model.parameters())
    torch.rand(3), random.random(), np.random.rand()  # noqa: NPY002
    assert everything() != before  # the comparison sees a generator that moved


def test_a_custom_loop_may_reach_what_the_loss_does_not_and_leave_evaluation_mode():
    rehearsed("Unused", "client.trainer=own_training:with_a_loss_of_its_own")
    with pytest.raises(SettingError, match=r"pool.weight, pool.bias of the model would be sent and noised"):
        rehearsed("Unused")
