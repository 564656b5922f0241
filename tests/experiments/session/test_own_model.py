"""Runs of a model that trains in part: a frozen backbone from a file, a head or adapters that are trained."""

import json

import numpy as np
import pytest
import torch

import runs
from crashes import behind_round
from experiments import run
from experiments.cli.command import guard
from experiments.evaluate import EvaluateSettings, evaluate
from experiments.session.recorder import Recorder
from experiments.settings.compose import compose
from fedmf.errors import RunDirectoryError, SettingError
from fedmf.updates.wire import ENVELOPE_BYTES
from own_training import Probe, adapted

pytestmark = pytest.mark.long

SMALL = (
    "population.cohort_size=10",
    "population.rounds_per_epoch=3",
    "population.epochs=2",
    "run.reproducible=true",
)
PROBE = (
    "model=custom",
    "model.name=own_training:Probe",
    "model.settings={width: 16}",
    "model.trainable=[head.*]",
)
HEAD = 16 * 10 + 10
ADAPTED = 2 * 64 + 12 * 2 + 12 * 10 + 10


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    """A file of what was trained elsewhere: the backbone's parameters and running statistics, and no head."""
    torch.manual_seed(3)
    model = Probe((8, 8), 10, width=16)
    model.train()
    model(torch.rand(64, 8, 8))
    path = tmp_path_factory.mktemp("backbone") / "backbone.npz"
    np.savez(
        path, **{name: value.numpy() for name, value in model.state_dict().items() if "head" not in name}
    )
    return path


@pytest.fixture(scope="module")
def probed(backbone, tmp_path_factory):
    directory = tmp_path_factory.mktemp("probe") / "r"
    return run(*SMALL, *PROBE, f"model.start={backbone}", f"run.directory={directory}")


def arrays(path):
    with np.load(path) as stored:
        return {name: stored[name] for name in stored.files}


def test_a_frozen_backbone_is_bit_equal_to_its_file_after_the_run(probed, backbone):
    before, initial, after = (
        arrays(path)
        for path in (backbone, probed.directory / "model_initial.npz", probed.directory / "model.npz")
    )
    assert list(before) == [name for name in after if "head" not in name]
    for name, values in before.items():
        for stored in (initial[name], after[name]):
            assert (stored.dtype, stored.tobytes()) == (values.dtype, values.tobytes()), name
    assert not np.array_equal(initial["head.weight"], after["head.weight"])


def test_only_what_trains_is_counted_sent_and_noised(probed):
    summary = probed.summary
    assert summary["parameters"] == probed.plan.dimension == HEAD
    assert summary["uplink_bytes_per_client"] == pytest.approx(0.1 * 256 * 4)
    assert probed.metrics[0]["downlink_bytes"] == 10 * (4 * HEAD + ENVELOPE_BYTES)
    assert summary["linf_over_l2"] == pytest.approx(np.sqrt(2 * np.log(256 * 10) / 256))


def test_the_statement_says_that_the_file_counts_as_public(probed):
    assert "file that model.start names count as public" in probed.statement


def test_the_very_model_comes_back_and_scores_the_same(probed, backbone, capsys):
    model = probed.__class__(probed.directory, trust_code=True).model()
    stored = arrays(probed.directory / "model.npz")
    assert all(np.array_equal(tensor.numpy(), stored[name]) for name, tensor in model.state_dict().items())
    settings = compose(
        "evaluate", [f"directory={probed.directory}", "trust_code=true", "output=json"], EvaluateSettings
    )
    evaluate(settings)
    scored = json.loads(capsys.readouterr().out)
    assert (scored["accuracy"], scored["loss"]) == (probed.accuracy, probed.loss)
    assert scored["parameters"] == HEAD


def test_a_model_comes_back_without_the_file_it_began_from(backbone, tmp_path):
    file = tmp_path / "moved.npz"
    file.write_bytes(backbone.read_bytes())
    result = run(*SMALL, *PROBE, f"model.start={file}", f"run.directory={tmp_path / 'r'}")
    file.unlink()
    assert result.plan.dimension == HEAD
    assert torch.equal(result.model().head.weight, result.model().head.weight)


@pytest.mark.parametrize("part", ["backbone.1.weight", "backbone.2.running_mean"])
def test_a_resume_refuses_a_file_that_changed_in_what_is_frozen(backbone, tmp_path, part):
    _resume_with_changed(backbone, tmp_path, part, PROBE, "digest of what does not train")


def test_a_resume_refuses_a_file_that_changed_in_what_trains(backbone, tmp_path):
    everything = ("model=custom", "model.name=own_training:adapted")
    file = tmp_path / "whole.npz"
    torch.manual_seed(0)
    np.savez(file, **{name: value.detach().numpy() for name, value in adapted((8, 8), 10).named_parameters()})
    _resume_with_changed(file, tmp_path, "3.bias", everything, "digest of the weights that model.start gave")


def _resume_with_changed(source, tmp_path, part, model, said):
    """Begin a run from a copy of `source`, stop it after an epoch, change one array of the copy, and go on."""
    file, stored = tmp_path / "copy.npz", arrays(source)
    np.savez(file, **stored)
    own = (
        *SMALL,
        *model,
        f"model.start={file}",
        f"run.directory={tmp_path / 'r'}",
        "run.resume=true",
        "engine=local",
    )
    settings = runs.composed(*own)
    with behind_round(Recorder, "on_release", 2):
        runs.simulate(settings)
    before = {path: path.read_bytes() for path in (tmp_path / "r").rglob("*") if path.is_file()}
    np.savez(file, **{**stored, part: np.nextafter(stored[part], np.float32(9))})
    with pytest.raises(RunDirectoryError, match=said):
        runs.simulate(settings)
    assert {path: path.read_bytes() for path in before} == before
    np.savez(file, **stored)
    runs.simulate(settings)
    assert runs.summary(tmp_path / "r")["rounds"] == 6


def test_adapters_train_as_a_model_of_ones_own(tmp_path):
    result = run(*SMALL, "model=custom", "model.name=own_training:adapted", f"run.directory={tmp_path / 'r'}")
    before, after = (arrays(result.directory / name) for name in ("model_initial.npz", "model.npz"))
    assert result.summary["parameters"] == ADAPTED
    assert np.array_equal(before["1.weight"], after["1.weight"])
    assert not before["1.low_rank_out"].any()
    assert after["1.low_rank_out"].any()


def test_a_run_begins_from_the_model_of_another_and_trains_a_part_of_it(tmp_path):
    mlp = ("model=mlp", "model.hidden=8")
    first = run(*SMALL, *mlp, f"run.directory={tmp_path / 'a'}")
    second = run(
        *SMALL,
        *mlp,
        "model.trainable=['3.*']",
        f"model.start={first.directory}/model.npz",
        f"run.directory={tmp_path / 'b'}",
    )
    trained, begun, ended = (
        arrays(path)
        for path in (
            first.directory / "model.npz",
            second.directory / "model_initial.npz",
            second.directory / "model.npz",
        )
    )
    assert all(np.array_equal(trained[name], begun[name]) for name in trained)
    assert [name for name in ended if not np.array_equal(ended[name], begun[name])] == ["3.weight", "3.bias"]


def test_without_noise_and_bounds_the_round_is_the_mean_of_the_updates_of_what_trains(tmp_path):
    free = (
        "privacy.epsilon=null",
        "privacy.noise_multiplier=0",
        "clipping.l2_norm=null",
        "compression.rotation=identity",
    )
    result = run(
        *SMALL[2:], *free, *PROBE[:3], "model.trainable=[head.bias]", "compression.keep_probability=1",
        "population.cohort_size=4", "population.rounds_per_epoch=1", "population.epochs=1", "mechanism=independent",
        "optimizer.momentum=0", "optimizer.learning_rate=1", f"run.directory={tmp_path / 'r'}",
    )  # fmt: skip
    from experiments.settings.experiment import build
    from server.cohort import cohort_indices

    settings = runs.composed(
        *free, *PROBE[:3], "model.trainable=[head.bias]", "compression.keep_probability=1", "mechanism=independent",
        "population.cohort_size=4", "population.rounds_per_epoch=1", "population.epochs=1", "optimizer.momentum=0",
        "optimizer.learning_rate=1",
    )  # fmt: skip
    experiment = build(settings)
    start = torch.from_numpy(experiment.initial.copy())
    total = torch.zeros(10)
    for client in cohort_indices(experiment.plan, 1):
        bias = start.clone().requires_grad_(True)
        held = experiment.dataset.clients[client]
        model = experiment.model.eval()
        features = model.backbone(torch.from_numpy(held.x)).detach()
        value = torch.nn.functional.cross_entropy(
            features @ model.head.weight.T + bias, torch.from_numpy(held.y)
        )
        (gradient,) = torch.autograd.grad(value, bias)
        total -= settings.client.learning_rate * gradient
    ended = arrays(result.directory / "model.npz")["head.bias"]
    np.testing.assert_allclose(ended, (start + total / 4).numpy(), atol=1e-6)


DROPPING = (*SMALL, *PROBE[:2], "model.settings={dropout: 0.5}", "model.trainable=[head.*]")


def test_a_reproducible_run_draws_the_same_dropout_again(tmp_path):
    torch.manual_seed(1)
    one = runs.run(tmp_path / "one", *DROPPING)
    torch.manual_seed(2)
    again = runs.run(tmp_path / "again", *DROPPING)
    np.testing.assert_array_equal(runs.model(one), runs.model(again))
    without = runs.run(tmp_path / "without", *DROPPING, "model.settings={dropout: 0.0}")
    assert not np.array_equal(runs.model(one), runs.model(without))


@pytest.mark.slow
def test_dropout_does_not_depend_on_which_process_plays_a_client(tmp_path):
    one = runs.run(tmp_path / "one", *DROPPING)
    two = runs.run(tmp_path / "two", *DROPPING, "engine.workers=2")
    np.testing.assert_array_equal(runs.model(one), runs.model(two))


def test_a_loop_and_a_loss_of_ones_own_train_a_run_and_are_what_is_scored(tmp_path, capsys):
    own = ("client.trainer=own_training:whole_batch", "client.loss=own_training:hinge")
    directory = runs.run(tmp_path / "r", *SMALL, *own)
    capsys.readouterr()
    evaluate(
        compose("evaluate", [f"directory={directory}", "trust_code=true", "output=json"], EvaluateSettings)
    )
    assert json.loads(capsys.readouterr().out)["loss"] == runs.summary(directory)["loss"]
    plain = compose("evaluate", [f"directory={directory}", "output=json"], EvaluateSettings)
    with pytest.raises(
        SettingError, match=r"client.loss of .* is 'own_training:hinge', which would be imported"
    ):
        evaluate(plain)


REFUSED = {
    "a pattern of nothing": (
        ["model.trainable=[head.*]"],
        "model.trainable is ['head.*'], but 'head.*' matches no parameter of the model; they are 1.weight, 1.bias",
    ),
    "a start that is not there": (
        ["model.start=nowhere.npz"],
        "model.start is 'nowhere.npz', which is no file",
    ),
    "batch norm that follows clients": (
        ["model=custom", "model.name=own_training:Probe"],
        "Freeze the parameters",
    ),
    "an unknown optimizer": (["client.optimizer=lbfgs"], "client.optimizer is 'lbfgs'"),
    "a loop and our settings": (
        ["client.trainer=own_training:whole_batch", "client.max_steps=3"],
        "client.max_steps is 3",
    ),
    "more parts than examples": (
        ["client.accumulate=11"],
        "client.accumulate is 11, but batch_size is 10",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_trained_ends_with_one_sentence_and_exit_code_2(tmp_path, capsys, case):
    overrides, said = REFUSED[case]
    assert guard(lambda: runs.run(tmp_path / "r", *SMALL, *overrides)) == 2
    printed = capsys.readouterr().err
    assert said in " ".join(printed.split())
    assert "Traceback" not in printed
    assert not (tmp_path / "r").exists()
