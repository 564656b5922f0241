"""Score the model of a run: `python -m experiments.evaluate directory=DIR`.

The model and its data set come from the run directory's config.yaml and model.npz. `dataset.path=FILE` (or
another key of the data set) replaces one of the run's values; `dataset=NAME` scores on another data set of
the same shape.

`metrics=[f1,MODULE:FUNCTION]` scores by other metrics than those of the run.

A loader, a model, a loss or a metric that config.yaml names by an import path is not imported, because importing runs
code: give it yourself (`dataset=custom dataset.name=MODULE:FUNCTION`, `model=custom model.name=MODULE:CLASS`,
`metrics=[...]`), or say with `trust_code=true` that you trust whoever wrote the directory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from torch import nn

from client import models
from client.data import Dataset
from client.losses import find_loss
from client.metric_names import METRICS, check_metrics
from client.metrics import find_metrics
from client.scoring import Score, refuse_failures, score
from experiments.cli import command, output
from experiments.run_files.model_files import load_model, recorded_seed
from experiments.run_files.reader import read_config
from experiments.settings.data import (
    DatasetSettings,
    ModelSettings,
    arguments,
    load_dataset,
    merged,
    print_notes,
)
from experiments.settings.output import PRINTED, Output
from experiments.settings.recorded import Recorded, refuse_code
from fedmf.checks import check_at_least
from fedmf.errors import SettingError
from fedmf.setting import REQUIRED, setting

# Without a choice: the run's own data set and model, of which any common key can be replaced.
RUNS_OWN = DatasetSettings(name="")
RUNS_OWN_MODEL = ModelSettings(name="")


@dataclass(frozen=True)
class EvaluateSettings:
    """Keys of the command."""

    directory: str = setting(REQUIRED, "folder of the run whose model is scored")
    batch_size: int = setting(256, "examples that are scored at once")
    metrics: tuple[str, ...] | None = setting(
        None,
        "metrics besides accuracy and loss, such as [f1,MODULE:FUNCTION]; null: those that the run recorded",
        METRICS,
    )
    trust_code: bool = setting(
        False,
        "true: import the loader, the model and the metrics that the directory's config.yaml names by "
        "import path",
    )
    output: Output = setting(Output.text, PRINTED)
    dataset: DatasetSettings = setting(RUNS_OWN, "another data set, of the same shape", chosen=None)
    model: ModelSettings = setting(
        RUNS_OWN_MODEL,
        "the run's own model by an import path of your own: model=custom model.name=MODULE:CLASS",
        chosen=None,
    )


def evaluate(settings: EvaluateSettings) -> None:
    """Print the scores of the model in `settings.directory`.

    Raises `SettingError` before anything is imported for code that only the directory names, without `trust_code`.
    """
    check_at_least("batch_size", settings.batch_size, 1)
    directory = Path(settings.directory)
    own = read_config(directory)
    given = {"dataset": arguments(settings.dataset), "model": arguments(settings.model)}
    chosen = {group: choose(own[group], given[group]) for group in given}
    chosen["client"] = {"loss": own.get("client", {}).get("loss", "cross_entropy")}
    entries = choose_metrics(own, settings.metrics)
    if not settings.trust_code:
        names = [*(group["name"] for group in given.values()), *(settings.metrics or ())]
        refuse_code(directory, {**chosen, "metrics": entries}, given=names, consent="trust_code=true")
    dataset = load_dataset(chosen["dataset"], chosen["model"]["name"])
    print_notes(dataset)
    model = load_model(directory, chosen["model"], dataset, recorded_seed(own))
    metrics = find_metrics(entries, classes=dataset.classes)
    result = score(
        model,
        dataset.test,
        loss=find_loss(str(chosen["client"]["loss"])),
        uncounted=dataset.uncounted,
        batch_size=settings.batch_size,
        metrics=metrics,
    )
    refuse_failures(result, metrics, "this model")
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


def choose_metrics(own: Recorded, given: Sequence[str] | None) -> list[str]:
    """Return the metrics given, else those that the run recorded. Raises `SettingError` for what can be none."""
    recorded = own.get("metrics") or []
    entries = list(given) if given is not None else recorded
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise SettingError(
            f"metrics of the run is {entries!r}, which is no list of names; give metrics=[...]."
        )
    check_metrics(entries)
    return entries


def as_document(result: Score, dataset: Dataset, model: nn.Module) -> dict[str, Any]:
    """Return what is printed: accuracy, loss (nats), further metrics, and what they were measured on."""
    return {
        "accuracy": result.accuracy,
        "loss": result.loss,
        **result.metrics,
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
