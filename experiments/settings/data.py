"""The groups `dataset` and `model`: one frozen dataclass for each choice, with the fields of its YAML file.

They hold values only; `client.data.load` and `client.models.build` say what the values mean and check them.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from experiments.settings.frozen import Choice, plain
from experiments.settings.keys import keyed, with_keys
from fedmf.errors import SettingError

if TYPE_CHECKING:
    from client.data import Dataset


@dataclass(frozen=True)
class DatasetSettings(Choice):
    """What every data set may be given; a loader refuses what it does not use."""

    name: str
    path: str | None
    examples_per_client: int | None
    max_examples_per_user: int | None
    max_test_examples: int | None
    vocabulary: str | None

    def __post_init__(self) -> None:
        if self.name:  # none: the data set of a run, in `evaluate`
            _refuse_other_choice("dataset", self, DATASETS)


@dataclass(frozen=True)
class ByUserNpzSettings(DatasetSettings):
    """Arrays of one's own."""

    classes: int | None


@dataclass(frozen=True)
class SyntheticSettings(DatasetSettings):
    """Made-up points."""

    clients: int
    features: int
    classes: int
    shift: float


@dataclass(frozen=True)
class ByUserTextSettings(DatasetSettings):
    """Texts of one's own; level null: what the model predicts; length null: 20 words or 80 characters."""

    vocabulary_size: int
    level: str | None
    length: int | None


@dataclass(frozen=True)
class ByUserCsvSettings(DatasetSettings):
    """A CSV table of one's own; null: as the loader says."""

    user: str
    label: str
    features: tuple[str, ...] | None
    text: str | None
    split: str | None
    classes: int | None
    labels: tuple[str, ...] | None
    delimiter: str
    vocabulary_size: int | None
    level: str | None
    length: int | None


@dataclass(frozen=True)
class ByUserTableSettings(DatasetSettings):
    """A parquet table of one's own, or a Hugging Face data set on disk; null: as the loader says."""

    user: str
    label: str
    features: tuple[str, ...] | None
    text: str | None
    image: str | None
    split: str | None
    classes: int | None
    labels: tuple[str, ...] | None
    vocabulary_size: int | None
    level: str | None
    length: int | None


@dataclass(frozen=True)
class ByUserImagesSettings(DatasetSettings):
    """A folder of pictures of one's own; null: as the loader says."""

    table: str | None
    file: str | None
    user: str | None
    label: str | None
    split: str | None
    classes: int | None
    labels: tuple[str, ...] | None


@dataclass(frozen=True)
class PartitionedSettings(DatasetSettings):
    """Arrays of one's own without users."""

    clients: int
    partitioner: str
    partitioner_settings: Mapping[str, object] | None
    alpha: float
    shards: int
    classes: int | None
    partition_seed: int


@dataclass(frozen=True)
class HubSettings(DatasetSettings):
    """A data set that the hub holds too; it is downloaded only when asked for."""

    as_published: bool
    download: bool


@dataclass(frozen=True)
class FemnistSettings(HubSettings):
    """Federated EMNIST."""

    only_digits: bool


@dataclass(frozen=True)
class StackOverflowSettings(DatasetSettings):
    """TFF's Stack Overflow."""

    vocabulary_size: int
    test: str
    length: int


@dataclass(frozen=True)
class CustomDatasetSettings(DatasetSettings):
    """A loader of one's own: `name` is its import path package.module:function, `settings` its arguments."""

    settings: Mapping[str, object] | None


@dataclass(frozen=True)
class ModelSettings(Choice):
    """What every model may be given: what of it trains, and a file of weights to begin with; null: the model's own."""

    name: str
    trainable: tuple[str, ...] | None = field(default=None, kw_only=True)
    start: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        _refuse_other_choice("model", self, MODELS)


@dataclass(frozen=True)
class CustomModelSettings(ModelSettings):
    """A module of one's own: `name` is its import path package.module:class, `settings` its arguments."""

    settings: Mapping[str, object] | None


@dataclass(frozen=True)
class MlpSettings(ModelSettings):
    """One hidden layer."""

    hidden: int


@dataclass(frozen=True)
class LstmSettings(ModelSettings):
    """A language model; null: the size of the papers."""

    embedding: int | None
    hidden: int | None


DATASETS: dict[str, type[DatasetSettings]] = {
    "digits": DatasetSettings,
    "synthetic": SyntheticSettings,
    "by_user_npz": ByUserNpzSettings,
    "by_user_text": ByUserTextSettings,
    "by_user_csv": ByUserCsvSettings,
    "by_user_parquet": ByUserTableSettings,
    "by_user_images": ByUserImagesSettings,
    "by_user_hub": ByUserTableSettings,
    "partitioned": PartitionedSettings,
    "femnist": FemnistSettings,
    "shakespeare": HubSettings,
    "stackoverflow": StackOverflowSettings,
    "custom": CustomDatasetSettings,
}
MODELS: dict[str, type[ModelSettings]] = {
    "logistic": ModelSettings,
    "mlp": MlpSettings,
    "cnn": ModelSettings,
    "lstm": LstmSettings,
    "char_lstm": LstmSettings,
    "custom": CustomModelSettings,
}


PREDICTS = {"lstm": "words", "char_lstm": "characters"}
"""What the language models predict: the level of texts of one's own that each is for."""
WITH_TEXTS = ("by_user_csv", "by_user_parquet", "by_user_hub")  # tables, of which one column may be texts
OF_THE_DATA = ("input_shape", "classes", "task", "seed")  # what every model is given besides its settings


def _refuse_other_choice(
    group: str, settings: DatasetSettings | ModelSettings, choices: Mapping[str, type]
) -> None:
    """Raise `SettingError` for a name whose keys are not these: a choice is made as GROUP=NAME."""
    choice = "custom" if ":" in settings.name else settings.name
    if choices.get(choice, type(settings)) is not type(settings):
        raise SettingError(
            f"{group}.name is {settings.name!r}, whose settings are those of {group}={choice}; choose it so."
        )


def arguments(settings: DatasetSettings | ModelSettings) -> dict[str, Any]:
    """Return a group as keyword arguments of `client.data.load` or `client.models.build`.

    `settings` of its own are merged in: a loader or model of one's own sees plain arguments.
    """
    return merged(plain(settings))


def merged(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a group with its `settings` merged in. Raises `SettingError` for settings that are no mapping or hide a key.

    >>> merged({"name": "mine:load", "path": None, "settings": {"size": 3}})
    {'name': 'mine:load', 'path': None, 'size': 3}
    """
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


def refuse_taken(given: Mapping[str, Any]) -> None:
    """Raise `SettingError` for an argument of a model that its data set or the run decides."""
    for key in OF_THE_DATA:
        if key in given:
            raise SettingError(
                f"settings of {given.get('name')} hold {key}, which follows from the data set or the seed; leave it out."
            )


def refuse_other_types(group: str, recorded: Mapping[str, Any]) -> None:
    """Raise `ValueError` for a recorded value of a known key of the group `dataset` or `model` of another type.

    Keys that nobody knows are left to the loader or model, which refuses them by name.
    """
    choices: Mapping[str, type] = DATASETS if group == "dataset" else MODELS
    name = recorded["name"]
    if not isinstance(name, str):
        raise ValueError(f"names its {group} {name!r}, which is no text")
    for key, hint in get_type_hints(choices.get(name, choices["custom"])).items():
        allowed = tuple(get_origin(part) or part for part in (get_args(hint) or (hint,)))
        if get_origin(hint) is Mapping:
            allowed = (Mapping,)
        if float in allowed:
            allowed = (*allowed, int)
        if tuple in allowed:  # what YAML writes as a list
            allowed = (*allowed, list)
        value = recorded.get(key)
        wrong = isinstance(value, bool) and bool not in allowed
        if key in recorded and (wrong or not isinstance(value, allowed)):
            wanted = " or ".join("null" if kind is NoneType else kind.__name__ for kind in allowed)
            raise ValueError(f"holds {value!r} as {group}.{key}, which must be {wanted}")


def load_dataset(
    arguments: Mapping[str, Any], model: str | None = None, *, clients_only: bool = False
) -> "Dataset":
    """Return the data set that a composed group `dataset` names; what it says of itself names keys too.

    `model` is the name of the model that it is for: texts of one's own are parted into what that predicts.
    `clients_only`: for a process that plays clients, which needs no test set.
    """
    from client.data import load  # with all loaders: not for a node that only says how many clients it holds

    arguments = _at_level(arguments, model)
    with keyed("dataset", arguments.keys()):
        dataset = load(**arguments, clients_only=clients_only)
    uncovered = tuple(with_keys(sentence, "dataset", arguments.keys()) for sentence in dataset.uncovered)
    notes = tuple(with_keys(sentence, "dataset", arguments.keys()) for sentence in dataset.notes)
    return replace(dataset, uncovered=uncovered, notes=notes)


def check_dataset(arguments: Mapping[str, Any], model: str | None = None) -> None:
    """Raise `SettingError` for a group `dataset` with which `load_dataset` could load no data; none are read."""
    from client.data.registry import check

    arguments = _at_level(arguments, model)
    with keyed("dataset", arguments.keys()):
        check(**arguments)


def print_notes(dataset: "Dataset") -> None:
    """Print on stderr what there is to know of the public part of a data set that was loaded."""
    for note in dataset.notes:
        print(f"dataset {dataset.name}: {note}", file=sys.stderr)


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
