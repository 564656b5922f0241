"""The absolute noise on a report is the noise that is in the model: seen in real runs whose clients send nothing."""

import numpy as np
import pytest

from experiments.pages.mechanism_section import mechanism_sections
from experiments.run_files.reader import read_run
from runs import model, run

pytestmark = pytest.mark.long

# All replies are lost: the model moves by noise alone.
NOISE_ALONE = (
    "faults.drop_out=1",
    "run.reproducible=true",
    "population.epochs=2",
    "population.rounds_per_epoch=8",
)


def shown(directory):
    """Return the absolute section of a run's report, None where it has none."""
    sections = list(mechanism_sections(read_run(directory)))
    return sections[1] if len(sections) > 1 else None


@pytest.mark.parametrize(
    "overrides",
    [
        ("optimizer.momentum=0.9",),
        ("optimizer.momentum=0", "optimizer.schedule=cosine", "mechanism=independent", "clipping.l2_norm=0.5"),
        ("compression.value_type=int8", "compression.keep_probability=0.5", "optimizer.learning_rate=1"),
    ],
)  # fmt: skip
def test_it_is_that_of_the_last_model(tmp_path, overrides):
    directory = run(tmp_path / "r", *NOISE_ALONE, *overrides)
    noise = model(directory) - model(directory, "model_initial.npz")
    section = shown(directory)
    (line,) = section.figure.drawing.series
    # 650 coordinates: the standard error of their standard deviation is 2.8 %.
    assert line.y[-1] == pytest.approx(np.std(noise), rel=0.1)
    assert (section.title, section.figure.drawing.y_label) == (
        "Noise in the model",
        "noise std (model units)",
    )
    assert len(line.y) == 16


@pytest.mark.parametrize(
    "optimizer", ["adam", "sgd optimizer.nesterov=true", "sgd optimizer.weight_decay=0.1"]
)
def test_what_an_optimizer_makes_of_the_sum_besides_is_not_claimed(tmp_path, optimizer):
    directory = run(tmp_path / "r", *NOISE_ALONE, *f"optimizer={optimizer}".split())
    section = shown(directory)
    assert section.title == "Noise in the accumulated mean updates"
    assert "update units" in section.figure.drawing.y_label
    assert "is not." in section.figure.caption


def test_a_run_without_noise_has_none_to_show(tmp_path):
    directory = run(tmp_path / "r", *NOISE_ALONE, "privacy.epsilon=null", "privacy.noise_multiplier=0")
    assert shown(directory) is None


def test_clients_that_scale_their_coordinates_have_no_common_unit(tmp_path):
    directory = run(tmp_path / "r", *NOISE_ALONE, "optimizer=adam", "optimizer.precondition=true")
    assert shown(directory) is None
