"""A model or data set that would fail at every client is one sentence, exit 2, and nothing written."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

import own_models
from client.losses import cross_entropy
from client.rehearsal import rehearse
from client.training import Trainer
from experiments.cli.command import guard
from experiments.session import recorder as scorer
from experiments.settings.experiment import build
from fedmf.errors import SettingError
from runs import composed, metrics, run, simulate

pytestmark = pytest.mark.long

IMAGES = ("dataset=custom", "dataset.name=own_models:people")
TOKENS = ("dataset=custom", "dataset.name=own_models:tokens")
SMALL = ("population.cohort_size=3", "population.epochs=1", "output=json")
WRONG = {
    "RaisesInConstructor": "which could not be made: KeyError: 'weights.pt' (",
    "Raises": "cannot take float32 inputs of shape [4, 8, 8]: ValueError: the layers do not fit (",
    "Exits": "SystemExit: 0 (",
    "NoForward": 'missing the required "forward" function',
    "NotANumber": "the model returns values that are not finite",
    "GradientNotANumber": "the gradient of parameter linear.bias is not finite",
    "FewOutputs": "returns the shape [4, 5] for inputs of shape [4, 8, 8]; it must return one tensor of shape [4, 10]",
    "ManyOutputs": "returns the shape [4, 11]",
    "OneOutput": "returns the shape [4] ",
    "WrongInput": "(4x63 and 64x10) (",
    "TwoArguments": "forward takes (x, mask), but it is called with one argument, the inputs",
    "KeywordNeeded": "forward takes (x, *, mask), but it is called with one argument",
    "Pair": "the model returns a tuple; it must return one tensor",
    "Named": "the model returns a dict; it must return one tensor",
    "Double": "linear.weight of the model is torch.float64; what trains must be float32",
    "Embedding": "cannot take float32 inputs of shape [4, 8, 8]: RuntimeError: Expected tensor for argument #1 'indices'",
    "Detached": "the loss does not depend on the model's parameters",
    "Flat": "all gradients are 0 before any training",
    "Unused": "pool.weight, pool.bias of the model would be sent and noised, but the loss does not depend on them",
    "DetachedBackbone": "backbone.weight, backbone.bias of the model would be sent and noised",
    "Whole": "the model returns int64 values; it must return real numbers",
    "AllFrozen": "no parameter",
    "NoParameters": "the model has no parameters",
    "Lazy": "lazy parameters",
    "OtherInEvaluation": "the model in evaluation mode returns the shape [4] ",
    "Uncopied": "RuntimeError: Only Tensors created explicitly",
}
WRONG_TEXT = {
    (
        "tokens",
        "Linear",
    ): "cannot take int64 inputs of shape [7, 4]: RuntimeError: mat1 and mat2 must have the same dtype",
    ("tokens", "DoubleEmbedding"): "embedding.weight of the model is torch.float64",
    (
        "too_many_classes",
        "Single",
    ): "the test set of dataset tokens holds the token 9; with classes=9 it must be 0 to 8.",
    ("other_shape", "Single"): "holds inputs int64 [4]; an input of this data set is int64 [5].",
    ("nothing_counts", "Single"): "has no target that the accuracy counts",
}


def refused(directory, capsys, *overrides):
    """The one sentence with which a run is refused that writes nothing."""
    settings = composed(f"run.directory={directory}", "model=custom", *SMALL, *overrides)
    assert guard(lambda: simulate(settings)) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert not directory.exists()
    return error


@pytest.mark.parametrize("name", WRONG)
def test_a_model_that_cannot_be_trained_is_one_sentence_and_nothing_written(tmp_path, capsys, name):
    error = refused(tmp_path / "r", capsys, *IMAGES, f"model.name=own_models:{name}")
    assert WRONG[name] in error
    if WRONG[name].endswith("("):
        assert "own_models.py:" in error


@pytest.mark.parametrize(("data", "name"), WRONG_TEXT)
def test_a_data_set_that_does_not_fit_is_one_sentence_and_nothing_written(tmp_path, capsys, data, name):
    overrides = (f"dataset.name=own_models:{data}", f"model.name=own_models:{name}")
    assert WRONG_TEXT[data, name] in refused(tmp_path / "r", capsys, "dataset=custom", *overrides)


def test_a_module_that_cannot_be_imported_is_one_sentence(tmp_path, capsys, monkeypatch):
    (tmp_path / "slip_of_the_pen.py").write_text("import torch\nweights = torch.zeroes(3)\nNet = nn.Linear\n")
    (tmp_path / "another_slip.py").write_text("Net = nn.Linear\n")
    monkeypatch.syspath_prepend(tmp_path)
    error = refused(tmp_path / "r", capsys, *IMAGES, "model.name=another_slip:Net")
    assert "whose module raised NameError: name 'nn' is not defined" in error
    assert "has no attribute 'zeroes'" in refused(
        tmp_path / "r", capsys, *IMAGES, "model.name=slip_of_the_pen:Net"
    )


def test_a_turn_that_diverges_is_refused_with_what_to_lower(tmp_path, capsys):
    overrides = (*IMAGES, "model.name=own_models:Linear", "client.learning_rate=1e38", "client.epochs=3")
    assert "a lower learning_rate of the clients" in refused(tmp_path / "r", capsys, *overrides)


def arguments(experiment, **changes):
    given = {
        "dataset": experiment.dataset,
        "model": experiment.model,
        "make_trainer": experiment.make_trainer,
        "start": experiment.initial,
        "loss": cross_entropy,
        "batch_size": 3,
    }
    return given | changes


def experiment_of(name, *overrides):
    return build(composed(*SMALL, *IMAGES, "model=custom", f"model.name=own_models:{name}", *overrides))


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
    experiment = experiment_of(name)

    def everything():
        held = [*experiment.model.parameters(), torch.random.get_rng_state()]
        arrays = [experiment.dataset.test.x, experiment.dataset.test.y, experiment.initial]
        states = (random.getstate(), str(np.random.get_state()))  # noqa: NPY002
        return [tensor.detach().numpy().tobytes() for tensor in held], [a.tobytes() for a in arrays], states

    before, mode = everything(), experiment.model.training
    try:
        made = lambda: Scribbling(experiment.model, experiment.training)  # noqa: E731
        rehearse(**arguments(experiment, make_trainer=made))
    except SettingError:
        assert name == "GradientNotANumber"
    assert everything() == before
    assert experiment.model.training is mode
    assert all(parameter.grad is None for parameter in experiment.model.parameters())
    torch.rand(3), random.random(), np.random.rand()  # noqa: NPY002
    assert everything() != before  # the comparison sees a generator that moved


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"classes": 9}, r"has the target 9; with 9 classes targets must lie in 0 to 8, or be -100"),
        ({"input_shape": (5,)}, r"has the shape \[4\]; the data set says that inputs have the shape \[5\]"),
    ],
)
def test_a_data_set_that_no_loader_has_checked_is_held_to_what_it_says_too(change, said):
    given = arguments(experiment_of("Linear"), dataset=replace(own_models.tokens(), **change))
    with pytest.raises(SettingError, match=said):
        rehearse(**given)


class Own(Trainer):
    """A trainer of one's own, whose turn `makes` something of the true update."""

    makes = staticmethod(lambda update: update)

    def update(self, *arguments, **keywords):
        return self.makes(super().update(*arguments, **keywords))


def fail(update):
    raise IndexError("no such batch")


@pytest.mark.parametrize(
    ("makes", "said"),
    [
        (lambda update: update * np.nan, "not finite; a lower learning_rate"),
        (lambda update: update[:-1], r"an update of shape \[649\]; it must be \[650\]"),
        (fail, r"a client's turn on 3 test examples failed: IndexError: no such batch \(.*test_rehearsal.py"),
    ],
    ids=["not finite", "too short", "raises"],
)
def test_a_turn_of_the_very_trainer_is_rehearsed(monkeypatch, makes, said):
    experiment = experiment_of("Linear")
    monkeypatch.setattr(Own, "makes", staticmethod(makes))
    with pytest.raises(SettingError, match=said):
        rehearse(
            **arguments(experiment, make_trainer=lambda: Own(experiment.model, experiment.training)),
        )


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (lambda outputs, y: outputs.sum(1), r"the loss gives shape \[3\]; it must give one number"),
        (lambda outputs, y: 1.0, "the loss gives a float"),
        (lambda outputs, y: outputs.sum() / 0, "the loss is -?inf before any training"),
        (lambda outputs, y: outputs @ y, "the loss cannot take outputs of shape .* RuntimeError"),
    ],
    ids=["one for each", "no tensor", "infinite", "raises"],
)
def test_the_very_loss_is_rehearsed(other, said):
    with pytest.raises(SettingError, match=said):
        rehearse(**arguments(experiment_of("Linear"), loss=other))


@pytest.mark.parametrize("loop", ["trains_nothing", "a_copy"])
def test_a_turn_that_changes_nothing_is_refused(loop):
    experiment = experiment_of("Linear", f"client.trainer=own_training:{loop}")
    with pytest.raises(SettingError, match="left every parameter as it was, so that nothing would be learnt"):
        rehearse(**arguments(experiment))


def test_a_loop_of_ones_own_may_reach_what_the_loss_does_not_and_leave_evaluation_mode():
    rehearse(
        **arguments(experiment_of("Unused", "client.trainer=own_training:with_a_loss_of_its_own")),
    )


def test_a_model_that_needs_two_examples_is_named_before_the_run(tmp_path, capsys):
    said = rehearse(**arguments(experiment_of("AcrossExamples")))
    assert "cannot be trained on one example alone: ValueError: Expected more than 1 value" in said
    assert rehearse(**arguments(experiment_of("Linear"))) is None
    run(tmp_path / "r", *SMALL, *IMAGES, "model=custom", "model.name=own_models:AcrossExamples")
    assert f"warning: {said}" in capsys.readouterr().err


def test_a_model_is_scored_in_the_rehearsal_on_as_many_examples_as_in_the_run():
    with pytest.raises(
        SettingError, match=r"in evaluation mode cannot take .* \[4, 8, 8\]: ValueError: too many"
    ):
        rehearse(**arguments(experiment_of("RaisesOnMany"), batch_size=3))


def test_a_loss_that_is_a_sum_is_refused_where_batches_are_cut():
    def total(outputs, y):
        return torch.nn.functional.cross_entropy(outputs, y, reduction="sum")

    experiment = experiment_of("Linear")
    rehearse(**arguments(experiment, loss=total))
    rehearse(**arguments(experiment, accumulate=2))
    with pytest.raises(SettingError, match="accumulate is set, but the loss is no mean over the targets"):
        rehearse(**arguments(experiment, loss=total, accumulate=2))


def test_a_model_that_cannot_be_scored_later_stops_the_run_in_a_sentence(tmp_path, capsys, monkeypatch):
    options = (*SMALL, *IMAGES, "model=custom", "model.name=own_models:Switched")
    real, scored = scorer.score, []

    def score(*given, **options):
        scored.append("once")
        return own_models.raising(None) if len(scored) == 2 else real(*given, **options)

    monkeypatch.setattr(scorer, "score", score)
    assert guard(lambda: simulate(composed(f"run.directory={tmp_path / 'r'}", *options))) == 1
    error = capsys.readouterr().err
    assert "the model could not be scored after round 2: ValueError: the secret 42 (" in error
    assert "Traceback" not in error
    assert [row["round"] for row in metrics(tmp_path / "r")] == [1, 2]
    run(tmp_path / "r", *options, "run.resume=true")
    assert [row["round"] for row in metrics(tmp_path / "r")] == [1, 2]
