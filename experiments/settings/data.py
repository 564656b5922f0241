"""The groups `dataset` and `model`: one frozen dataclass for each choice.

The keys of a built-in dataset are the keyword arguments of its loader, with their types and defaults: here is only what
they mean. `client.data.load` and `client.models.build` check the values.
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

_OWN_LOADER = "package.module:function, a loader of your own"
_OWN_MODEL = "package.module:Class, a model of your own"
_OWN_ARGUMENTS = "its other arguments, such as {size: 3}; null: none"


@dataclass(frozen=True)
class DatasetSettings(Choice):
    """Settings of every dataset; one that a loader does not use is an error."""

    name: str = setting(REQUIRED, _OWN_LOADER)
    path: str | None = setting(
        None, "the file or folder of the data (docs/data.md); null: what the dataset comes with, if anything"
    )
    examples_per_client: int | None = setting(
        None,
        "then cut users into clients of at most this many examples; the client is the unit, not the user; synthetic: how "
        "many are drawn for each client, null: 10",
    )
    max_examples_per_user: int | None = setting(
        None,
        "use only the first so many examples of each user, who stays the unit (Kairouz et al. 2021: 256)",
    )
    max_test_examples: int | None = setting(
        None,
        "use only so many of the test examples, drawn by a public seed; null: all, of stackoverflow 10,000",
    )
    vocabulary: str | None = setting(
        None,
        "for text: a file of public words, or of characters, one a line; null: learnt from the users, or ASCII",
    )
    held_out: float | None = setting(
        None,
        "share of the clients that are held out, chosen by their numbers alone and the same whatever the seed; null: none",
    )
    held_out_use: str = setting(
        "score",
        "use of the held-out clients: score, in place of the test set, without training; train, alone, to tune on; or none",
        HELD_OUT_USES,
    )


# What the arguments of loaders mean, as KEY or DATASET.KEY. An argument that is not here is no setting.
MEANS = {
    "alpha": "concentration of dirichlet and inner_dirichlet: small is uneven",
    "as_published": "true: as in TFF and LEAF (docs/data.md)",
    "classes": "how many classes there are; null: as many as the labels say",
    "synthetic.classes": "how many classes there are",
    "synthetic.clients": "how many clients there are, up to 1,000,000,000",
    "partitioned.clients": "how many made-up clients there are",
    "comment": "of CSV: what lines begin with that are left out, such as #; null: none are",
    "delimiter": "between the columns",
    "features": "the columns of numbers that are the input, such as [height,width], or one of lists of numbers; null: all others",
    "synthetic.features": "numbers of an input",
    "file": "the table's column of files below the folder; null: file_name",
    "header": "of CSV: false: the first line is a row, and the columns are called f0, f1, ...",
    "image": "the column of pictures (PNG or JPEG), or of lists of pixels",
    "label": "the column of labels: whole numbers from 0, or names; of regression and multilabel the column, or several as [a,b], of "
    "numbers, or one of lists; null: label",
    "labels": "the public names of the classes, class 0 first, such as [cat,dog]; null: those of all rows (of the test rows "
    "with classes)",
    "length": "words or characters of an example; null: 20 words or 80 characters",
    "stackoverflow.length": "words of a sentence",
    "level": "of texts: words or characters; null: what the model predicts (char_lstm characters, any other words)",
    "only_digits": "true: the 10 digits of the 62 classes",
    "partition_seed": "public seed of who gets which example",
    "partitioner": f"how examples are dealt: {', '.join(PARTITIONERS)}, or a class of flwr-datasets",
    "partitioner_settings": "arguments of that class, such as {num_classes_per_partition: 3}; null: its defaults",
    "shards": "shards of a client, with partitioner=shards",
    "shift": "how far the clients' inputs lie apart",
    "split": "a column of 0 or train, 1 or test; null: the column split, if there is one, else a fifth of each user's rows",
    "table": "a CSV or parquet file that names pictures, users and labels; null: metadata.csv or .parquet in "
    "the folder, if there",
    "test": "of data without a split: users: some of them are the test set and do not train; rows, or null: some rows of each",
    "test_share": "of data without a split: the share of the rows, or users, that are the test set; null: 0.2",
    "stackoverflow.test": "the test set; validation: its first 10,000 sentences, to choose settings on; heldout: users who never train",
    "task": "of data with labels; null: what the test set makes plain (docs/data.md)",
    "text": "the column of texts, for a language model; features and label are then not used",
    "user": "the column of users: whole numbers or texts; null: user",
    "vocabulary_size": "words that are kept, the most frequent first, of the vocabulary or of those counted without one; null: "
    "10000",
    "stackoverflow.vocabulary_size": "words of the vocabulary, the most frequent first",
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
    """A loader of the user's own: `name` is its import path package.module:function, `settings` its arguments."""

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
    """What every model may be given: what of it trains, and a file of weights to begin with; null: the model's own."""

    name: str = setting(REQUIRED, _OWN_MODEL)
    trainable: tuple[str, ...] | None = setting(
        None,
        "names of the parameters that train, as patterns such as [head.*]; all others are frozen; null: what the model leaves",
    )
    start: str | None = setting(
        None,
        "file of weights to begin with, by name: .npz such as another run's model.npz, .safetensors, or a state dict of torch "
        "(.pt, .pth), of which nothing is run; counts as public; null: none",
    )


@dataclass(frozen=True)
class CustomModelSettings(ModelSettings):
    """A module of the user's own: `name` is its import path package.module:class, `settings` its arguments."""

    settings: Mapping[str, object] | None = setting(None, _OWN_ARGUMENTS)


@dataclass(frozen=True)
class MlpSettings(ModelSettings):
    hidden: int = setting(256, "units of the hidden layer")


@dataclass(frozen=True)
class LstmSettings(ModelSettings):
    embedding: int | None = setting(None, "numbers that stand for a token; null: the size of the papers")
    hidden: int | None = setting(None, "units of an LSTM layer; null: the size of the papers")


ModelSettings.options = {
    "logistic": Option(ModelSettings, "logistic regression; of regression linear regression"),
    "mlp": Option(MlpSettings, "one hidden layer of rectified units"),
    "cnn": Option(ModelSettings, "convolutional network for images of at least 8 x 8"),
    "lstm": Option(LstmSettings, "next word: one LSTM layer"),
    "char_lstm": Option(LstmSettings, "next character: two LSTM layers"),
    "custom": Option(CustomModelSettings, _OWN_MODEL),
}


# What the language models predict: the level that the user's own texts are split at for each.
PREDICTS = {"lstm": "words", "char_lstm": "characters"}
# Tables, of which one column may be texts.
WITH_TEXTS = ("by_user_csv", "by_user_parquet", "by_user_hub", "partitioned")


def arguments(settings: Choice | Mapping[str, Any]) -> dict[str, Any]:
    """Return a group as keyword arguments of `client.data.load` or `client.models.build`, its own `settings` merged in.

    Raises `SettingError` for own settings that are no mapping or hide a key.

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
            f"settings of {own.get('name')} hold {', '.join(taken)}, which is no argument of its own; give it next to them."
        )
    return {**own, **more}


def load_dataset(
    arguments: Mapping[str, Any], model: str | None = None, public: Public | None = None
) -> Dataset:
    """Return the dataset that a composed group `dataset` names.

    `model` is the name of the model that it is for: the user's own texts are split into what that predicts.
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
    """Print on stderr what there is to know of the public part of a dataset that was loaded."""
    for note in dataset.notes:
        messages.info(f"dataset {dataset.name}: {note}")


def _at_level(arguments: Mapping[str, Any], model: str | None) -> Mapping[str, Any]:
    """Return the arguments of the user's own texts at the level that `model` predicts; other datasets' as they are.

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
