"""Runs of a model that trains in part: a frozen backbone from a file, a head or adapters that are trained."""

import shutil

import numpy as np
import pytest
import torch

import runs
from experiments import run
from experiments.session.recorder import Recorder
from fedmf.updates.wire import ENVELOPE_BYTES
from own_training import Probe, adapted
from runs import behind_round

pytestmark = pytest.mark.long

SMALL = (*runs.SMALL, "population.cohort_size=10")
ADAPTERS = ("model=custom", "model.name=own_training:adapted")
PROBE = (
    "model=custom",
    "model.name=own_training:Probe",
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
    result = run(*SMALL, *PROBE, f"model.start={file}", f"run.directory={folder / 'r'}")
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
    assert summary["parameters"] == probed.plan.dimension == HEAD
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
    own = (*SMALL, *model, f"model.start={file}", "run.resume=true")
    with behind_round(Recorder, "on_release", 2):
        runs.run(directory, *own)
    np.savez(file, **{**stored, part: np.nextafter(stored[part], np.float32(9))})
    assert said in runs.refused(capsys, directory, *own)
    np.savez(file, **stored)
    runs.run(directory, *own)
    assert runs.summary(directory)["rounds"] == 6
