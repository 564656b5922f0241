"""The studies: the committed runs are those of the cells, and every cell is a run that the settings allow."""

import json
from pathlib import Path

import pytest

from experiments.reproduce.study import Study, Trial, studies
from experiments.settings.compose import compose
from experiments.settings.schema import Settings
from fedmf.errors import SettingError

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "results"
SIZES = [(name, size) for name, study in studies().items() for size in study["sizes"]]


@pytest.mark.parametrize("file", sorted({study["runs"] for study in studies().values()}))
def test_every_committed_run_is_of_a_cell_and_every_cell_has_runs(file):
    """By the digest of its settings: a setting that is changed or moved in studies.yaml loses its runs."""
    cells = {
        (cell.task, cell.mechanism, cell.fingerprint)
        for name, size in SIZES
        if studies()[name]["runs"] == file
        for cell in Study(name, size).cells
    }
    lines = map(json.loads, (FOLDER / f"{file}.jsonl").read_text().splitlines())
    runs = {(line["task"], line["mechanism"], line["settings"]) for line in lines}
    assert {key for key in runs if key[1] != "always the same five words"} == cells


@pytest.mark.parametrize(("name", "size"), SIZES)
def test_the_settings_of_every_mechanism_compose(name, size):
    for task in Study(name, size).tasks:
        last = {cell.mechanism: cell for cell in task.cells.values()}
        for cell in last.values():
            given = compose("config", [*cell.overrides, "seed=0"], Settings)
            assert given.compression.keep_probability == cell.keep
            assert given.privacy.epsilon == cell.epsilon


def test_a_chain_goes_through_neighbours_and_restarts_only_where_its_study_says_so():
    (_, *_), (first, *_) = Study("whole_run", "small").chains(), Study("sgmf_csgm", "small").chains()
    assert [(cell.keep, cell.epsilon) for cell in first.cells] == [
        (1.0, 8.0), (1.0, 2.0), (0.1, 2.0), (0.1, 8.0), (0.01, 8.0), (0.01, 2.0)
    ]  # fmt: skip
    chains = [
        [(cell.keep, cell.epsilon) for cell in chain.cells] for chain in Study("whole_run", None).chains()
    ]
    assert chains[0] == [(0.1, epsilon) for epsilon in (8.0, 4.0, 2.0, 1.0)]
    assert [1.0, 8.0] in [list(chain[0]) for chain in chains]


def test_without_epochs_every_round_is_one():
    (task,) = Study("sgmf_csgm", "small").tasks
    with_epochs, without = (
        task.cells[name, 1.0, 2.0].overrides for name in ("independent, L2-CSGM", "L2-CSGM, no epochs")
    )
    assert {"population.rounds_per_epoch=16", "population.epochs=4"} <= set(with_epochs)
    assert {"population.rounds_per_epoch=1", "population.epochs=64"} <= set(without)


def test_another_rate_seed_or_share_is_another_trial():
    cell = Study("whole_run", "small").cells[0]
    trials = [Trial(cell, 0.3, 0), Trial(cell, 0.45, 0), Trial(cell, 0.3, 1), Trial(cell, 0.3, 0, 0.15)]
    assert len({trial.key for trial in trials}) == 4


def test_an_unknown_size_is_an_error_that_names_the_sizes():
    with pytest.raises(SettingError, match="size is 'huge'; it must be one of full, small"):
        Study("whole_run", "huge")
