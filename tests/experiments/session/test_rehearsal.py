"""Custom models: one that would fail at every client is one sentence and nothing written; one that trains in part keeps the rest."""

import contextlib
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import runs
import users_own
from client.rehearsal import rehearse
from client.training import Trainer
from experiments import run
from experiments.cli.command import guard
from experiments.session.recorder import Recorder
from experiments.settings.experiment import build
from fedmf.errors import SettingError
from fedmf.updates.wire import ENVELOPE_BYTES
from users_own import Probe, adapted

pytestmark = pytest.mark.long

IMAGES = ("dataset=custom", "dataset.name=users_own:people", "model=custom")
SMALL = ("population.cohort_size=3", "population.epochs=1", "output=json")
HERE = str(Path(users_own.__file__))
TURN = "a client's turn on 4 test examples"
WRONG = {
    "RaisesInConstructor": f"which could not be made: KeyError: 'weights.pt' ({HERE}:",
    "Raises": f"cannot take float32 inputs of shape [4, 8, 8]: ValueError: the layers do not fit ({HERE}:",
    "NotANumber": "before any training that are no finite real numbers",
    "GradientNotANumber": f"{TURN} gave an update that is not finite",
    "FewOutputs": "returns the shape [4, 5] for inputs of shape [4, 8, 8] in evaluation mode; it must return one tensor of shape [4, 10]",
    "Remembers": "what one client's data leave could reach the next",
    "Unused": "pool.weight, pool.bias of the model would be sent and noised, but the loss does not",
    "Uncopied": "RuntimeError: Only Tensors created explicitly",
    "Single other_shape": "The task is next_token, but inputs are int64 [5] and targets [4]",
    "Single nothing_counts": "has no target that the accuracy counts",
}


def refused(directory, capsys, *overrides):
    """The one sentence with which a run is refused that writes nothing."""
    settings = runs.composed(f"run.directory={directory}", *SMALL, *IMAGES, *overrides)
    assert guard(lambda: runs.simulate(settings)) == 2
    *about_data, error = capsys.readouterr().err.splitlines()
    assert all(line.startswith("dataset ") for line in about_data)
    assert error.startswith("error: ")
    assert not directory.exists()
    return error


@pytest.mark.parametrize("case", WRONG)
def test_a_model_or_data_set_that_cannot_be_trained_is_one_sentence_and_nothing_written(
    tmp_path, capsys, case
):
    name, _, data = case.partition(" ")
    given = (f"model.name=users_own:{name}", f"dataset.name=users_own:{data or 'people'}")
    assert WRONG[case] in refused(tmp_path / "r", capsys, *given)


def rehearsed(name, *overrides, trainer=None, **changes):
    """Rehearse a model of `users_own`, as it is or with something changed."""
    experiment = build(runs.composed(*SMALL, *IMAGES, f"model.name=users_own:{name}", *overrides))
    make = (
        experiment.make_trainer if trainer is None else lambda: trainer(experiment.model, experiment.training)
    )
    given = {
        "dataset": experiment.dataset,
        "model": experiment.model,
        "start": experiment.initial,
        "batch_size": 3,
    }
    return rehearse(**given | changes, make_trainer=make)


@pytest.mark.parametrize(("given", "said"), [
    ("Linear client.loss=users_own:of_each", "on 3 test examples failed: RuntimeError: grad can be implicitly created only"),
    ("Linear client.trainer=users_own:trains_nothing", "left every parameter as it was"),
    ("RaisesOnMany", r"cannot take .* \[4, 8, 8\]: ValueError: too many"),  # as many as in a run
])  # fmt: skip
def test_trainer_turn_loss_and_score_of_the_run_itself_are_rehearsed(given, said):
    with pytest.raises(SettingError, match=said):
        rehearsed(*given.split())


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
    experiment = build(runs.composed(*SMALL, *IMAGES, f"model.name=users_own:{name}"))

    def everything():
        held = [*experiment.model.parameters(), torch.random.get_rng_state()]
        arrays = [experiment.dataset.test.x, experiment.dataset.test.y, experiment.initial]
        states = (random.getstate(), str(np.random.get_state()))  # noqa: NPY002
        return [tensor.detach().numpy().tobytes() for tensor in held], [a.tobytes() for a in arrays], states

    before, mode = everything(), experiment.model.training
    own = {"dataset": experiment.dataset, "model": experiment.model, "start": experiment.initial}
    with contextlib.nullcontext() if name == "Draws" else pytest.raises(SettingError):
        rehearsed(
            name,
            trainer=lambda model, training: Scribbling(experiment.model, training, "classification"),
            **own,
        )
    assert everything() == before
    assert experiment.model.training is mode
    assert all(parameter.grad is None for parameter in experiment.model.parameters())
    torch.rand(3), random.random(), np.random.rand()  # noqa: NPY002
    assert everything() != before  # the comparison sees a generator that moved


def test_a_custom_loop_may_reach_what_the_loss_does_not_and_leave_evaluation_mode():
    rehearsed("Unused", "client.trainer=users_own:with_a_loss_of_its_own")
    with pytest.raises(SettingError, match=r"pool.weight, pool.bias of the model would be sent and noised"):
        rehearsed("Unused")


PARTS = (*runs.SMALL, "population.cohort_size=10")
ADAPTERS = ("model=custom", "model.name=users_own:adapted")
PROBE = (
    "model=custom",
    "model.name=users_own:Probe",
    "model.settings={width: 16}",
    "model.trainable=[head.*]",
)
HEAD = 16 * 10 + 10


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    """A file of what was trained elsewhere: the backbone's parameters and running statistics, and no head."""
    torch.manual_seed(3)
    model = Probe((8, 8), 10, width=16)
    model.train()
    model(torch.rand(64, 8, 8))
    path = tmp_path_factory.mktemp("backbone") / "backbone.npz"
    held = {name: value.numpy() for name, value in model.state_dict().items()}
    np.savez(path, **{name: value for name, value in held.items() if "head" not in name})
    return path


@pytest.fixture(scope="module")
def probed(backbone, tmp_path_factory):
    """A run that began from the file, which is gone now."""
    folder = tmp_path_factory.mktemp("probe")
    file = shutil.copy(backbone, folder / "moved.npz")
    result = run(*PARTS, *PROBE, f"model.start={file}", f"run.directory={folder / 'r'}")
    file.unlink()
    return result


def arrays(path):
    with np.load(path) as stored:
        return {name: stored[name] for name in stored.files}


def test_a_frozen_backbone_is_bit_equal_to_its_file_after_the_run(probed, backbone):
    before = arrays(backbone)
    initial, after = (arrays(probed.directory / name) for name in ("model_initial.npz", "model.npz"))
    assert list(before) == [name for name in after if "head" not in name]
    for name, values in before.items():
        for stored in (initial[name], after[name]):
            assert (stored.dtype, stored.tobytes()) == (values.dtype, values.tobytes()), name
    assert not np.array_equal(initial["head.weight"], after["head.weight"])


def test_only_what_trains_is_counted_sent_and_noised(probed):
    summary = probed.summary
    assert summary["parameters"] == HEAD
    assert summary["uplink_bytes_per_client"] == pytest.approx(0.1 * 256 * 4)
    assert probed.metrics[0]["downlink_bytes"] == 10 * (4 * HEAD + ENVELOPE_BYTES)
    assert "file that model.start names count as public" in probed.statement
    assert summary["linf_over_l2"] == pytest.approx(np.sqrt(2 * np.log(256 * 10) / 256))


@pytest.mark.parametrize(("model", "part", "said"), [
    (PROBE, "backbone.1.weight", "digest of what does not train"),
    (PROBE, "backbone.2.running_mean", "digest of what does not train"),
    (ADAPTERS, "3.bias", "digest of the weights that model.start gave"),
])  # fmt: skip
def test_a_resume_refuses_a_file_that_changed_in_what_is_frozen_or_trains(
    backbone, tmp_path, capsys, model, part, said
):
    stored = arrays(backbone)
    if model is ADAPTERS:
        torch.manual_seed(0)
        stored = {name: value.detach().numpy() for name, value in adapted((8, 8), 10).named_parameters()}
    file, directory = tmp_path / "copy.npz", tmp_path / "r"
    np.savez(file, **stored)
    own = (*PARTS, *model, f"model.start={file}", "run.resume=true")
    with runs.behind_round(Recorder, "on_release", 2):
        runs.run(directory, *own)
    np.savez(file, **{**stored, part: np.nextafter(stored[part], np.float32(9))})
    assert said in runs.refused(capsys, directory, *own)
    np.savez(file, **stored)
    runs.run(directory, *own)
    assert runs.summary(directory)["rounds"] == 6
