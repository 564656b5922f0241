"""Score the model of a run: `python -m experiments.evaluate directory=DIR`.

The model and its data set come from the run directory's config.yaml and model.npz. `dataset.path=FILE` (or
another key of the data set) replaces one of the run's values; `dataset=NAME` scores on another data set of
the same shape.

A loader or a model that config.yaml names by an import path is not imported, because importing runs code: give it
yourself (`dataset=custom dataset.name=MODULE:FUNCTION`, `model=custom model.name=MODULE:CLASS`), or say with
`trust_code=true` that you trust whoever wrote the directory.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from torch import nn

from client import models
from client.data import Dataset
from client.scoring import Score, score
from experiments.cli import command, output
from experiments.run_files.model import load_model
from experiments.run_files.reader import read_config
from experiments.settings.data import (
    DatasetSettings,
    ModelSettings,
    arguments,
    load_dataset,
    merged,
    print_notes,
)
from experiments.settings.output import Output
from experiments.settings.recorded import refuse_code
from fedmf.checks import check_at_least

# Without a choice: the run's own data set and model, of which any common key can be replaced.
RUNS_OWN = DatasetSettings(
    name="",
    path=None,
    examples_per_client=None,
    max_examples_per_user=None,
    max_test_examples=None,
    vocabulary=None,
)
RUNS_OWN_MODEL = ModelSettings(name="")


@dataclass(frozen=True)
class EvaluateSettings:
    """Keys of the command."""

    directory: str
    batch_size: int
    trust_code: bool
    output: Output
    dataset: DatasetSettings = RUNS_OWN
    model: ModelSettings = RUNS_OWN_MODEL


def evaluate(settings: EvaluateSettings) -> None:
    """Print the scores of the model in `settings.directory`.

    Raises `SettingError` before anything is imported for code that only the directory names, without `trust_code`.
    """
    check_at_least("batch_size", settings.batch_size, 1)
    directory = Path(settings.directory)
    own = read_config(directory)
    given = {"dataset": arguments(settings.dataset), "model": arguments(settings.model)}
    chosen = {group: choose(own[group], given[group]) for group in given}
    if not settings.trust_code:
        names = [group["name"] for group in given.values()]
        refuse_code(directory, chosen, given=names, consent="trust_code=true")
    dataset = load_dataset(chosen["dataset"], chosen["model"]["name"])
    print_notes(dataset)
    model = load_model(directory, chosen["model"], dataset)
    result = score(model, dataset.test, uncounted=dataset.uncounted, batch_size=settings.batch_size)
    document = as_document(result, dataset, model)
    if settings.output is Output.json:
        output.print_json(document)
    else:
        _print_table(directory, document)


def choose(own: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a group's arguments: the run's own with those given in their place.

    Another name drops all of the run's own values.
    """
    known = merged(own)
    chosen = {key: value for key, value in given.items() if value not in (None, "")}
    if chosen.get("name", known["name"]) != known["name"]:
        return chosen
    return {**known, **chosen}


def as_document(result: Score, dataset: Dataset, model: nn.Module) -> dict[str, Any]:
    """Return what is printed: accuracy, loss (nats), and what they were measured on."""
    return {
        "accuracy": result.accuracy,
        "loss": result.loss,
        "targets": result.counted,
        "examples": len(dataset.test),
        "dataset": dataset.name,
        "source": dataset.source,
        "parameters": models.parameter_count(model),
    }


def _print_table(directory: Path, document: dict[str, Any]) -> None:
    """Print one row per figure."""
    table = Table(title=f"Scores of {directory}", show_header=False)
    for key, value in document.items():
        table.add_row(key, f"{value:.4f}" if isinstance(value, float) else f"{value}")
    output.console().print(table)


if __name__ == "__main__":
    command.run(evaluate, "evaluate", EvaluateSettings, __doc__)
