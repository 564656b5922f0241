"""Score the model of a run: `python -m experiments.evaluate directory=DIR`.

The model and its data set come from the run directory's config.yaml and model.npz. `dataset.path=FILE` (or
another key of the data set) replaces one of the run's values; `dataset=NAME` scores on another data set of
the same shape.
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
from experiments.settings.data import DatasetSettings, arguments, load_dataset, merged
from experiments.settings.output import Output
from fedmf.checks import check_at_least

# Without a choice: the run's own data set, of which any common key can be replaced.
RUNS_OWN = DatasetSettings(name="", path=None, examples_per_client=None, vocabulary=None)


@dataclass(frozen=True)
class EvaluateSettings:
    """Keys of the command."""

    directory: str
    batch_size: int
    output: Output
    dataset: DatasetSettings = RUNS_OWN


def evaluate(settings: EvaluateSettings) -> None:
    """Print the scores of the model in `settings.directory`."""
    check_at_least("batch_size", settings.batch_size, 1)
    directory = Path(settings.directory)
    own = read_config(directory)
    chosen = choose_dataset(own["dataset"], arguments(settings.dataset))
    dataset = load_dataset(chosen)
    model = load_model(directory, own["model"], dataset)
    result = score(model, dataset.test, uncounted=dataset.uncounted, batch_size=settings.batch_size)
    document = as_document(result, dataset, model)
    if settings.output is Output.json:
        output.print_json(document)
    else:
        _print_table(directory, document)


def choose_dataset(own: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of `client.data.load`: the run's own with those given in their place.

    Another data set's name drops all of the run's own values.
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
