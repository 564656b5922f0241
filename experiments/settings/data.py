"""The groups `dataset` and `model`: one frozen dataclass for each kind of choice.

They hold values only; `client.data.load` and `client.models.build` say what the values mean and check them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from client.settings import HELD_OUT_USES, LEVELS, PARTITIONERS, TEST_SPLITS
from experiments.settings.keys import keyed
from experiments.settings.log import messages
from experiments.settings.values import Choice, Option, plain
from fedmf.errors import SettingError
from fedmf.setting import REQUIRED, setting

if TYPE_CHECKING:
    from client.data import Dataset

_OWN_LOADER = "package.module:function, a loader of your own"
_OWN_MODEL = "package.module:Class, a model of your own"
_CLASSES = "how many classes there are; null: as many as the labels say"
_LABELS = (
    "the public names of the classes, class 0 first, such as [cat,dog]; null: those of all rows (of the test rows "
    "with classes)"
)
_SPLIT = "a column of 0 or train, 1 or test; null: the column split, if there is one, else a fifth of each user's rows"


@dataclass(frozen=True)
class DatasetSettings(Choice):
    """What every data set may be given; a loader refuses what it does not use."""

    name: str = setting(REQUIRED, _OWN_LOADER)
    path: str | None = setting(
        None, "the file or folder of the data (docs/data.md); null: what the data set comes with, if anything"
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


@dataclass(frozen=True)
class ByUserNpzSettings(DatasetSettings):
    """Arrays of one's own."""

    classes: int | None = setting(None, _CLASSES)


@dataclass(frozen=True)
class SyntheticSettings(DatasetSettings):
    """Made-up points."""

    clients: int = setting(1000, "how many clients there are, up to 1,000,000,000")
    features: int = setting(32, "numbers of an input")
    classes: int = setting(10, "how many classes there are")
    shift: float = setting(0.5, "how far the clients' inputs lie apart")


@dataclass(frozen=True)
class ByUserTextSettings(DatasetSettings):
    """Texts of one's own."""

    vocabulary_size: int | None = setting(
        None,
        "words that are kept, the most frequent first, of the vocabulary or of those counted without one; null: 10000",
    )
    level: str | None = setting(
        None,
        "of texts: words or characters; null: what the model predicts (char_lstm characters, any other words)",
        LEVELS,
    )
    length: int | None = setting(None, "words or characters of an example; null: 20 words or 80 characters")


@dataclass(frozen=True)
class ByUserColumnsSettings(ByUserTextSettings):
    """What every table of one's own may be given."""

    user: str = setting("user", "the column of users: whole numbers or texts")
    label: str = setting("label", "the column of labels: whole numbers from 0, or names")
    features: tuple[str, ...] | None = setting(
        None,
        "the columns of numbers that are the input, such as [height,width], or one of lists of numbers; null: all others",
    )
    text: str | None = setting(
        None, "the column of texts, for a language model; features and label are then not used"
    )
    split: str | None = setting(None, _SPLIT)
    classes: int | None = setting(None, _CLASSES)
    labels: tuple[str, ...] | None = setting(None, _LABELS)


@dataclass(frozen=True)
class ByUserCsvSettings(ByUserColumnsSettings):
    """A CSV table of one's own."""

    delimiter: str = setting(",", "between the columns")


@dataclass(frozen=True)
class ByUserTableSettings(ByUserColumnsSettings):
    """A table of one's own in parquet or as a Hugging Face data set."""

    image: str | None = setting(None, "the column of pictures (PNG or JPEG), or of lists of pixels")


@dataclass(frozen=True)
class ByUserImagesSettings(DatasetSettings):
    """A folder of pictures of one's own, USER/LABEL/FILE, also below train and test."""

    table: str | None = setting(
        None,
        "a CSV or parquet file that names pictures, users and labels; null: metadata.csv or .parquet in the folder, if there",
    )
    file: str | None = setting(None, "the table's column of files below the folder; null: file_name")
    user: str | None = setting(None, "the table's column of users; null: user")
    label: str | None = setting(None, "the table's column of labels; null: label")
    split: str | None = setting(None, _SPLIT)
    classes: int | None = setting(None, _CLASSES)
    labels: tuple[str, ...] | None = setting(None, _LABELS)


@dataclass(frozen=True)
class PartitionedSettings(DatasetSettings):
    """Arrays of one's own without users."""

    clients: int = setting(100, "how many made-up clients there are")
    partitioner: str = setting(
        "iid",
        f"how examples are dealt: {', '.join(PARTITIONERS)}, or a class of flwr-datasets",
        PARTITIONERS,
    )
    partitioner_settings: Mapping[str, object] | None = setting(
        None, "arguments of that class, such as {num_classes_per_partition: 3}; null: its defaults"
    )
    alpha: float = setting(0.5, "concentration of dirichlet and inner_dirichlet: small is uneven")
    shards: int = setting(2, "shards of a client, with partitioner=shards")
    classes: int | None = setting(None, _CLASSES)
    partition_seed: int = setting(0, "public seed of who gets which example")


@dataclass(frozen=True)
class HubSettings(DatasetSettings):
    """A data set that the hub holds too; it is downloaded only when asked for."""

    as_published: bool = setting(False, "true: as in TFF and LEAF (docs/data.md)")
    download: bool = setting(False, "true: from the hub, if path is null")


@dataclass(frozen=True)
class FemnistSettings(HubSettings):
    """Federated EMNIST."""

    only_digits: bool = setting(False, "true: the 10 digits of the 62 classes")


@dataclass(frozen=True)
class StackOverflowSettings(DatasetSettings):
    """TFF's Stack Overflow."""

    vocabulary_size: int = setting(10000, "words of the vocabulary, the most frequent first")
    test: str = setting(
        "test",
        "the test set; validation: its first 10,000 sentences, to choose settings on; heldout: users who never train",
        TEST_SPLITS,
    )
    length: int = setting(20, "words of a sentence")


@dataclass(frozen=True)
class CustomDatasetSettings(DatasetSettings):
    """A loader of one's own: `name` is its import path package.module:function, `settings` its arguments."""

    settings: Mapping[str, object] | None = setting(
        None, "its other arguments, such as {size: 3}; null: none"
    )


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
        "FILE.npz of weights to begin with, by name, such as another run's model.npz; counts as public; null: none",
    )


@dataclass(frozen=True)
class CustomModelSettings(ModelSettings):
    """A module of one's own: `name` is its import path package.module:class, `settings` its arguments."""

    settings: Mapping[str, object] | None = setting(
        None, "its other arguments, such as {width: 3}; null: none"
    )


@dataclass(frozen=True)
class MlpSettings(ModelSettings):
    """One hidden layer."""

    hidden: int = setting(256, "units of the hidden layer")


@dataclass(frozen=True)
class LstmSettings(ModelSettings):
    """A language model."""

    embedding: int | None = setting(None, "numbers that stand for a token; null: the size of the papers")
    hidden: int | None = setting(None, "units of an LSTM layer; null: the size of the papers")


DatasetSettings.options = {
    "digits": Option(
        DatasetSettings,
        "scanned digits that ship with scikit-learn: 1437 clients with one image of 8 x 8 each",
    ),
    "synthetic": Option(
        SyntheticSettings, "made-up points: Gaussian classes whose centres every client sees moved"
    ),
    "by_user_npz": Option(
        ByUserNpzSettings, "your own arrays x, y, user in one .npz file or a folder of .npy files"
    ),
    "by_user_text": Option(ByUserTextSettings, "your own texts: JSON lines with user and text (or tokens)"),
    "by_user_csv": Option(ByUserCsvSettings, "your own table: CSV with columns by name"),
    "by_user_parquet": Option(ByUserTableSettings, "your own table: parquet with columns by name"),
    "by_user_images": Option(
        ByUserImagesSettings,
        "your own pictures: a folder USER/LABEL/FILE, or a table of files, users and labels",
    ),
    "by_user_hub": Option(ByUserTableSettings, "a Hugging Face data set on disk, with columns by name"),
    "partitioned": Option(
        PartitionedSettings, "your own arrays x, y without users, dealt to made-up clients"
    ),
    "femnist": Option(
        FemnistSettings, "handwritten digits and letters of 3,400 writers (TFF, LEAF or the hub)"
    ),
    "shakespeare": Option(HubSettings, "next character of the lines of 715 roles (TFF, LEAF or the hub)"),
    "stackoverflow": Option(StackOverflowSettings, "next word of 342,477 users (TFF)"),
    "custom": Option(CustomDatasetSettings, _OWN_LOADER),
}
ModelSettings.options = {
    "logistic": Option(ModelSettings, "logistic regression"),
    "mlp": Option(MlpSettings, "one hidden layer of rectified units"),
    "cnn": Option(ModelSettings, "convolutional network for images of at least 8 x 8"),
    "lstm": Option(LstmSettings, "next word: one LSTM layer"),
    "char_lstm": Option(LstmSettings, "next character: two LSTM layers"),
    "custom": Option(CustomModelSettings, _OWN_MODEL),
}


PREDICTS = {"lstm": "words", "char_lstm": "characters"}
"""What the language models predict: the level of texts of one's own that each is for."""
WITH_TEXTS = ("by_user_csv", "by_user_parquet", "by_user_hub")  # tables, of which one column may be texts


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
            f"settings of {own.get('name')} hold {', '.join(taken)}, which is no argument of its own; give it beside them."
        )
    return {**own, **more}


def load_dataset(
    arguments: Mapping[str, Any], model: str | None = None, *, clients_only: bool = False
) -> "Dataset":
    """Return the data set that a composed group `dataset` names.

    `model` is the name of the model that it is for: texts of one's own are parted into what that predicts.
    `clients_only`: for a process that plays clients, which needs no test set.
    """
    from client.data import load  # with all loaders: not for a node that only says how many clients it holds

    arguments = _at_level(arguments, model)
    with keyed("dataset", arguments.keys()):
        return load(**arguments, clients_only=clients_only)


def check_dataset(arguments: Mapping[str, Any], model: str | None = None) -> None:
    """Raise `SettingError` for a group `dataset` with which `load_dataset` could load no data; none are read."""
    from client.data.registry import check

    arguments = _at_level(arguments, model)
    with keyed("dataset", arguments.keys()):
        check(**arguments)


def check_none_held_out(settings: DatasetSettings) -> None:
    """Raise `SettingError` for held-out clients in a deployment."""
    if settings.held_out is not None:
        raise SettingError(
            f"dataset.held_out is {settings.held_out}, but the clients of a deployment are its nodes'; leave it null."
        )


def print_notes(dataset: "Dataset") -> None:
    """Print on stderr what there is to know of the public part of a data set that was loaded."""
    for note in dataset.notes:
        messages.info(f"dataset {dataset.name}: {note}")


def _at_level(arguments: Mapping[str, Any], model: str | None) -> Mapping[str, Any]:
    """Return the arguments of texts of one's own at the level that `model` predicts; other data sets' as they are.

    Raises `SettingError` for a level that is another one. Models of one's own take either, words where none is given.
    """
    predicted = PREDICTS.get(model or "")
    of_texts = arguments.get("name") == "by_user_text" or (
        arguments.get("name") in WITH_TEXTS and arguments.get("text") is not None
    )
    if not of_texts or predicted is None:
        return arguments
    if arguments.get("level") not in (None, predicted):
        raise SettingError(
            f"dataset.level is {arguments['level']!r}, but model={model} predicts {predicted}; leave dataset.level null, "
            "which follows the model, or choose the other model."
        )
    return {**arguments, "level": predicted}
