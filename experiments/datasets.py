"""List the datasets and models: `python -m experiments.datasets`.

Prints for every dataset its content, whether the users of its test split train too, its licence and its source; for every model its
task and its number of parameters on the data of its papers. Loads no data.
"""

from dataclasses import dataclass
from typing import Any

from client import layout_of, models
from client.data import CLASSIFICATION, DATASETS
from experiments.cli import command, output
from experiments.pages.wording import number
from experiments.settings.values import PRINTED, Output
from fedmf.setting import setting

# Data on which models are measured: (words, input shape, classes).
MEASURED_ON = {
    "logistic": ("8 x 8 images, 10 classes", (8, 8), 10),
    "mlp": ("28 x 28 images, 10 classes", (28, 28), 10),
    "cnn": ("28 x 28 images, 62 classes", (28, 28), 62),
    "lstm": ("10,000 words and 4 special tokens", (20,), 10_004),
    "char_lstm": ("86 characters and 4 special tokens", (80,), 90),
}


@dataclass(frozen=True)
class DatasetsSettings:
    output: Output = setting("text", PRINTED)


def datasets(settings: DatasetsSettings) -> None:
    """Print all datasets and all models with what a user should know of them."""
    keys = ("summary", "test_users", "licence", "source")
    document = {
        "datasets": [
            {"name": name, **{key: getattr(entry, key) for key in keys}} for name, entry in DATASETS.items()
        ],
        "models": [model_entry(name) for name in models.MODELS],
    }
    output.show(settings.output, document, lambda: _print(document))


def model_entry(name: str) -> dict[str, Any]:
    """Return what a model is, and its size on the data of its papers."""
    builder, task = models.MODELS[name]
    data, shape, classes = MEASURED_ON[name]
    model = models.build(name, input_shape=shape, classes=classes, task=task, seed=0)
    return {
        "name": name,
        "summary": (builder.__doc__ or "").splitlines()[0].removeprefix("Return ").split(":")[0],
        "task": "images and other numbers" if task == CLASSIFICATION else "text, next token",
        "parameters": layout_of(model).dimension,
        "on": data,
    }


def _print(document: dict[str, list[dict[str, Any]]]) -> None:
    for title, entries in document.items():
        columns = {key.replace("_", " "): {"overflow": "fold"} for key in entries[0]}
        output.print_table(
            title, columns, (map(number, entry.values()) for entry in entries), show_lines=True
        )
    output.console().print(
        "Your own: dataset=custom dataset.name=package.module:function, model=custom model.name=package.module:Class."
    )


if __name__ == "__main__":
    command.run(datasets, "datasets", DatasetsSettings, __doc__)
