"""docs/privacy.md: its figures are those of the plans, and its runs bear out the limit."""

import re
from pathlib import Path

import pytest

from experiments.settings.compose import compose
from experiments.settings.experiment import build
from experiments.settings.schema import Settings
from fedmf.outlook import MOST_NOISE, is_too_much_noise, misgivings, noise_of_run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "privacy.md"
ROW = re.compile(r"^\| `(.+)` \| ([\d,]+) \| ([\d.]+) \| ([\d, ]+) \|$", re.MULTILINE)
CHANCE = 10  # percent, of all rows


def rows():
    """(settings, parameters, noise over signal, mean accuracy) of every row of the table."""
    for settings, parameters, figure, accuracies in ROW.findall(PAGE.read_text()):
        each = [float(value) for value in accuracies.split(",")]
        yield settings, int(parameters.replace(",", "")), float(figure), sum(each) / len(each)


def test_runs_above_the_limit_ended_near_chance_and_those_far_below_learned():
    table = list(rows())
    above = [(figure, accuracy) for _, d, figure, accuracy in table if is_too_much_noise(figure, d)]
    large = [accuracy for figure, accuracy in above if figure < MOST_NOISE]
    below = [accuracy for _, _, figure, accuracy in table if figure < 0.01]
    assert (len(table), len(large)) == (24, 3)
    assert max(accuracy for _, accuracy in above) < 2.5 * CHANCE
    assert max(large) < 1.5 * CHANCE
    assert min(below) > 4 * CHANCE


@pytest.mark.parametrize(
    "wanted",
    ["privacy.epsilon=0.04", "mechanism=independent privacy.epsilon=0.2", "model=mlp privacy.epsilon=0.1"],
)
def test_a_row_has_the_figures_of_its_plan_and_is_said_above_the_limit_only(wanted):
    ((parameters, figure),) = [(d, figure) for settings, d, figure, _ in rows() if settings == wanted]
    plan = build(compose("config", [*wanted.split(), "privacy.delta=1e-4"], Settings)).plan
    assert plan.dimension == parameters
    assert noise_of_run(plan) == pytest.approx(figure, abs=1e-4)
    about_noise = [sentence for sentence in misgivings(plan) if "noise in the last model" in sentence]
    assert len(about_noise) == is_too_much_noise(figure, parameters)
