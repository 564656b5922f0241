"""The absolute noise on a report is the noise that is in the model: seen in real runs whose clients send nothing."""

import numpy as np
import pytest

from experiments.pages.run_plots import noise_section
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
    plot = noise_section(read_run(directory)).plot
    own, *_ = plot.series
    # 650 coordinates: the standard error of their standard deviation is 2.8 %.
    assert own.y[-1] == pytest.approx(np.std(noise), rel=0.1)
    assert plot.y_label == "noise std (model units)"
    assert len(own.y) == 16


@pytest.mark.parametrize(
    ("overrides", "unit", "words"),
    [
        ("optimizer=adam", "update units", "is not:"),
        ("optimizer=sgd optimizer.nesterov=true", "update units", "is not:"),
        ("optimizer=sgd optimizer.weight_decay=0.1", "update units", "is not:"),
        ("privacy.epsilon=null privacy.noise_multiplier=0", "relative", "over noise multiplier"),
        # Clients that scale their coordinates have no common unit.
        ("optimizer=adam optimizer.precondition=true", "relative", "over noise multiplier"),
    ],
)
def test_nothing_is_claimed_about_what_else_an_optimizer_makes_of_it_or_without_a_unit(
    tmp_path, overrides, unit, words
):
    plot = noise_section(read_run(run(tmp_path / "r", *NOISE_ALONE, *overrides.split()))).plot
    assert plot.y_label == f"noise std ({unit})"
    assert words in plot.caption
