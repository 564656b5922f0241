"""The groups `dataset` and `model`: one frozen dataclass for each choice.

The keys of a built-in dataset are the keyword arguments of its loader, with their types and defaults: this module has only
their meanings. `client.data.load` and `client.models.build` check the values.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, make_dataclass
from typing import Any

from client.data import DATASETS, Dataset, Public, load
from client.data.own import OWN_TASKS
from client.data.registry import check
from client.settings import HELD_OUT_USES, LEVELS, PARTITIONERS, TEST_SPLITS, TEST_UNITS
from experiments.settings.log import messages
from experiments.settings.values import Choice, Option, keyed, plain
from fedmf.errors import SettingError
from fedmf.setting import REQUIRED, setting

_OWN_LOADER = "custom loader, package.module:function"
_OWN_MODEL = "custom model, package.module:Class"
_OWN_ARGUMENTS = "further arguments of it, such as {size: 3}; null: none"


@dataclass(frozen=True)
class DatasetSettings(Choice):
    """Settings of every dataset; one that a loader does not use is an error."""

    name: str = setting(REQUIRED, _OWN_LOADER)
    path: str | None = setting(
        None, "file or folder of the data (docs/data.md); null: the data that ship with the dataset, if any"
    )
    examples_per_client: int | None = setting(
        None,
        "maximum number of examples of a client; users with more are cut into several clients, and the client is the unit of "
        "privacy, not the user; synthetic: number of examples drawn for each client, null: 10",
    )
    max_examples_per_user: int | None = setting(
        None,
        "maximum number of examples of a user, the first ones; the user stays the unit of privacy (Kairouz et al. 2021: 256)",
    )
    max_test_examples: int | None = setting(
        None,
        "maximum number of test examples, drawn by a public seed; null: all, for stackoverflow 10,000",
    )
    vocabulary: str | None = setting(
        None,
        "for text: file of public words or characters, one a line; null: words of the training users, or ASCII",
    )
    held_out: float | None = setting(
        None,
        "share of the clients that is held out, the same for every seed; null: none",
    )
    held_out_use: str = setting(
        "score",
        "use of the held-out clients: to score on, instead of the test set; to train, with no other clients, for tuning; or none",
        HELD_OUT_USES,
    )


# Meanings of the loaders' arguments, as KEY or DATASET.KEY. An argument that is not here is not a setting.
MEANS = {
    "alpha": "concentration of dirichlet and inner_dirichlet; a small value is uneven",
    "as_published": "true: inputs and metrics as in TFF and LEAF (docs/data.md)",
    "classes": "number of classes; null: one more than the largest test label",
    "synthetic.classes": "number of classes",
    "synthetic.clients": "number of clients, at most 1,000,000,000",
    "partitioned.clients": "number of made-up clients",
    "comment": "for CSV: first character of lines that are skipped, such as #; null: no line is",
    "delimiter": "separator of the columns",
    "features": "columns of numbers that are the input, such as [height,width], or one column of lists of numbers; null: all other columns",
    "synthetic.features": "length of an input",
    "file": "column of the table with the files' paths below the folder; null: file_name",
    "header": "for CSV; false: the first line is a row, and the columns are named f0, f1, ...",
    "image": "column of pictures (PNG or JPEG), or of lists of pixels",
    "label": "column of labels: whole numbers from 0, or names; for regression and multilabel one or several columns of numbers, as [a,b], "
    "or one column of lists; null: label",
    "labels": "public names of the classes, class 0 first, such as [cat,dog]; null: the names in all rows (in the test rows if "
    "classes is set)",
    "length": "number of words or characters in an example; null: 20 words or 80 characters",
    "stackoverflow.length": "number of words in a sentence",
    "level": "for text: words or characters; null: what the model predicts (characters for char_lstm, words for others)",
    "only_digits": "true: only the 10 digits of the 62 classes",
    "partition_seed": "public seed of the assignment of examples to clients",
    "partitioner": f"partitioner of the examples: {', '.join(PARTITIONERS)}, or a class of flwr-datasets",
    "partitioner_settings": "arguments of the partitioner, such as {num_classes_per_partition: 3}; null: its defaults",
    "shards": "number of shards a client, with partitioner=shards",
    "shift": "distance between the clients' inputs",
    "split": "column of 0 or train, 1 or test; null: the column split if there is one, otherwise a fifth of each user's rows is the test set",
    "table": "CSV or parquet file that names pictures, users and labels; null: metadata.csv or metadata.parquet in the folder, if there is one",
    "test": "for data without a split; users: a share of the users is the test set and does not train; rows or null: a share of each user's rows",
    "test_share": "for data without a split: share of the rows, or users, in the test set; null: 0.2",
    "stackoverflow.test": "test set; validation: the first 10,000 sentences of the test split, for tuning; heldout: users who never train",
    "task": "task of data with labels; null: the one that follows from the test set (docs/data.md)",
    "text": "column of texts, for a language model that needs neither features nor label",
    "user": "column of users: whole numbers or texts; null: user",
    "vocabulary_size": "maximum number of words, the most frequent first; null: 10000",
    "stackoverflow.vocabulary_size": "number of words in the vocabulary, the most frequent first",
}
OFFERED = {
    "level": LEVELS,
    "task": OWN_TASKS,
    "partitioner": tuple(PARTITIONERS),
    "test": TEST_UNITS,
    "stackoverflow.test": TEST_SPLITS,
}


def _settings_of(name: str, loader: Callable[..., Dataset]) -> type[DatasetSettings]:
    """Return the settings of a built-in dataset: those of all, and the arguments of its loader that `MEANS` has."""
    taken: list[tuple[str, Any, Any]] = []
    for key, argument in inspect.signature(loader, eval_str=True).parameters.items():
        means = MEANS.get(f"{name}.{key}", MEANS.get(key))
        choices = OFFERED.get(f"{name}.{key}", OFFERED.get(key, ()))
        if means is not None:
            taken.append((key, argument.annotation, setting(argument.default, means, choices)))
    return make_dataclass(
        f"{name}_settings",
        taken,
        bases=(DatasetSettings,),
        namespace={"__module__": __name__},
        frozen=True,
    )


@dataclass(frozen=True)
class CustomDatasetSettings(DatasetSettings):
    """A custom loader: `name` is its import path package.module:function, `settings` its arguments."""

    settings: Mapping[str, object] | None = setting(None, _OWN_ARGUMENTS)


DatasetSettings.options = {
    **{
        name: Option(_settings_of(name, entry.load), entry.summary.removesuffix("."))
        for name, entry in DATASETS.items()
    },
    "custom": Option(CustomDatasetSettings, _OWN_LOADER),
}
globals().update(
    {option.settings.__name__: option.settings for option in DatasetSettings.options.values()}
)  # for pickle


@dataclass(frozen=True)
class ModelSettings(Choice):
    """Settings of every model: the parameters that train, and a file of initial weights; null: those of the model."""

    name: str = setting(REQUIRED, _OWN_MODEL)
    trainable: tuple[str, ...] | None = setting(
        None,
        "names of the parameters that train, as patterns such as [head.*]; all others are frozen; null: all that the model does not freeze",
    )
    start: str | None = setting(
        None,
        "file of initial weights, which count as public: .npz such as another run's model.npz, .safetensors, or a state dict of torch "
        "(.pt, .pth; no code in it is run); null: none",
    )


@dataclass(frozen=True)
class CustomModelSettings(ModelSettings):
    """A custom module: `name` is its import path package.module:class, `settings` its arguments."""

    settings: Mapping[str, object] | None = setting(None, _OWN_ARGUMENTS)


@dataclass(frozen=True)
class MlpSettings(ModelSettings):
    hidden: int = setting(256, "units of the hidden layer")


@dataclass(frozen=True)
class LstmSettings(ModelSettings):
    embedding: int | None = setting(None, "size of a token's embedding; null: that of the papers")
    hidden: int | None = setting(None, "units of an LSTM layer; null: as in the papers")


ModelSettings.options = {
    "logistic": Option(ModelSettings, "logistic regression; for task=regression linear regression"),
    "mlp": Option(MlpSettings, "one hidden layer of rectified units"),
    "cnn": Option(ModelSettings, "convolutional network for images of at least 8 x 8"),
    "lstm": Option(LstmSettings, "next-word prediction, one LSTM layer"),
    "char_lstm": Option(LstmSettings, "next-character prediction, two LSTM layers"),
    "custom": Option(CustomModelSettings, _OWN_MODEL),
}


# What the language models predict: the level at which custom texts are split for each.
PREDICTS = {"lstm": "words", "char_lstm": "characters"}
# Tables, of which one column may be texts.
WITH_TEXTS = ("by_user_csv", "by_user_parquet", "by_user_hub", "partitioned")


def arguments(settings: Choice | Mapping[str, Any]) -> dict[str, Any]:
    """Return a group as keyword arguments of `client.data.load` or `client.models.build`, with its `settings` merged in.

    Raises `SettingError` for `settings` that are not a mapping or that repeat a key.

    >>> arguments({"name": "mine:load", "path": None, "settings": {"size": 3}})
    {'name': 'mine:load', 'path': None, 'size': 3}
    """
    group = plain(settings)
    own = {key: value for key, value in group.items() if key != "settings"}
    more = group.get("settings") or {}
    if not isinstance(more, Mapping):
        raise SettingError(
            f"settings of {own.get('name')} are {more!r}; they must be a mapping such as {{size: 3}}."
        )
    if taken := sorted(set(own) & set(more)):
        raise SettingError(
            f"settings of {own.get('name')} contain {', '.join(taken)}, which is a setting of the group; give it next to them."
        )
    return {**own, **more}


def load_dataset(
    arguments: Mapping[str, Any], model: str | None = None, public: Public | None = None
) -> Dataset:
    """Return the dataset that a composed group `dataset` names.

    `model` is the name of the model that it is for: custom texts are split into the tokens that it predicts.
    `public`: for a process that only runs clients, and needs no test set.
    """
    arguments = _at_level(arguments, model)
    with keyed("dataset", arguments.keys()):
        return load(**arguments, public=public)


def check_dataset(arguments: Mapping[str, Any], model: str | None = None) -> None:
    """Raise `SettingError` for a group `dataset` with which `load_dataset` could load no data; none are read."""
    arguments = _at_level(arguments, model)
    with keyed("dataset", arguments.keys()):
        check(**arguments)


def check_none_held_out(settings: DatasetSettings) -> None:
    """Raise `SettingError` for held-out clients in a deployment."""
    if settings.held_out is not None:
        raise SettingError(
            f"dataset.held_out is {settings.held_out}, but the clients of a deployment are its nodes'; leave it null."
        )


def print_notes(dataset: Dataset) -> None:
    """Print notes about the public part of a loaded dataset on stderr."""
    for note in dataset.notes:
        messages.info(f"dataset {dataset.name}: {note}")


def _at_level(arguments: Mapping[str, Any], model: str | None) -> Mapping[str, Any]:
    """Return the arguments of custom texts at the level that `model` predicts, those of other datasets unchanged.

    Raises `SettingError` for another level. Custom models take either, words where none is given.
    """
    predicted = PREDICTS.get(model or "")
    name, path = arguments.get("name"), str(arguments.get("path"))
    of_texts = name == "by_user_text" or (
        name in WITH_TEXTS and (arguments.get("text") is not None or ".jsonl" in path)
    )
    if not of_texts or predicted is None:
        return arguments
    if arguments.get("level") not in (None, predicted):
        raise SettingError(
            f"dataset.level is {arguments['level']!r}, but model={model} predicts {predicted}; leave dataset.level null, "
            "which follows the model, or choose the other model."
        )
    return {**arguments, "level": predicted}
