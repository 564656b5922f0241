"""Score the model of a run: `python -m experiments.evaluate directory=DIR`.

Model and dataset are those of the run directory's config.yaml and model.npz. `dataset.path=FILE`, or another key of the dataset,
replaces one of the run's values; `dataset=NAME` scores on another dataset of the same shape. `metrics=[f1,MODULE:FUNCTION]`
computes other metrics than those of the run.

A loader, model, loss or metric that config.yaml names by an import path is not imported, because importing runs code. Name it again
on the command line (`dataset=custom dataset.name=MODULE:FUNCTION`, `model=custom model.name=MODULE:CLASS`, `metrics=[...]`), or
set `trust_code=true` if you trust the author of the directory.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from client.metrics import METRICS, check_metrics, find_metrics, further_metrics
from client.parameters import layout_of
from client.scoring import check_scored, find_loss, score
from experiments.cli import command, output
from experiments.pages.wording import text_of, words_of
from experiments.run_files.model_files import load_model, recorded_seed, with_given
from experiments.run_files.reader import read_config
from experiments.settings.data import DatasetSettings, ModelSettings, load_dataset, print_notes
from experiments.settings.experiment import shape_of
from experiments.settings.log import messages
from experiments.settings.recorded import check_code_is_named
from experiments.settings.values import PRINTED, Output
from fedmf.setting import REQUIRED, setting


@dataclass(frozen=True)
class EvaluateSettings:
    directory: str = setting(REQUIRED, "folder of the run whose model is scored")
    batch_size: int = setting(256, "examples in a batch", at_least=1)
    metrics: tuple[str, ...] | None = setting(
        None,
        "metrics in addition to loss and accuracy (for regression r2, for multilabel label_accuracy), such as [f1,MODULE:FUNCTION]; null: those of the run",
        METRICS,
    )
    trust_code: bool = setting(
        False,
        "true: import the loader, the model and the metrics that the directory's config.yaml names by "
        "import path",
    )
    output: Output = setting("text", PRINTED)
    # Without a choice: the run's own dataset and model, of which any common key can be replaced.
    dataset: DatasetSettings = setting(
        DatasetSettings(name=""), "another dataset of the same shape; null: the run's", chosen=None
    )
    model: ModelSettings = setting(
        ModelSettings(name=""),
        "custom model by its import path: model=custom model.name=MODULE:CLASS; null: the run's",
        chosen=None,
    )


def evaluate(settings: EvaluateSettings) -> None:
    """Print the scores of the model in `settings.directory`, and what they were measured on."""
    document = scores(settings)
    rows = [(words_of(key), text_of(key, value)) for key, value in document.items()]
    output.show(
        settings.output,
        document,
        lambda: output.print_table(f"Scores of {Path(settings.directory)}", {}, rows),
    )


def scores(settings: EvaluateSettings) -> dict[str, Any]:
    """Return the scores of the model in `settings.directory`, and what they were measured on. Cross-entropies are in nats.

    Raises `SettingError` before anything is imported for code that only the directory names, without `trust_code`.
    """
    directory = Path(settings.directory)
    own = read_config(directory)
    entries = list(
        further_metrics(own.get("metrics")).values() if settings.metrics is None else settings.metrics
    )
    check_metrics(entries)
    loss = own.get("client", {}).get("loss")
    chosen = {group: with_given(own[group], getattr(settings, group)) for group in ("dataset", "model")}
    if not settings.trust_code:
        check_code_is_named(
            directory,
            {**chosen, "client": {"loss": loss}, "metrics": entries},
            given=[settings.dataset.name, settings.model.name, *(settings.metrics or ())],
            consent="trust_code=true",
        )
    dataset = load_dataset(chosen["dataset"], chosen["model"]["name"])
    print_notes(dataset)
    model = load_model(directory, chosen["model"], shape_of(dataset), recorded_seed(own))
    result = score(
        model,
        dataset.test,
        loss=find_loss(loss and str(loss), dataset.task),
        uncounted=dataset.uncounted,
        batch_size=settings.batch_size,
        metrics=find_metrics(entries, classes=dataset.classes, task=dataset.task),
    )
    check_scored(result, "this model")
    if own.get("run", {}).get("reproducible") or own.get("privacy", {}).get("noise_multiplier") == 0:
        messages.warning(
            f"{directory} is a run that is NOT private: without noise, or with reproducible secrets."
        )
    return {
        **result.values,
        "targets": result.counted,
        "examples": len(dataset.test),
        "dataset": dataset.name,
        "source": dataset.source,
        "parameters": layout_of(model).dimension,
    }


if __name__ == "__main__":
    command.run(evaluate, "evaluate", EvaluateSettings, __doc__)
