"""One node of a deployment and its clients, as its operator declares them on that machine alone.

A SuperNode is started with --node-config 'overrides="clients=479 dataset=by_user_npz dataset.path=/srv/x.npz"'.
The overrides are those of `python -m experiments.node_check`, which its operator runs before. A node reads no test set:
what is public of all examples, `public`, is what the server found in its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from flwr.app import Message

from client.data import NEXT_TOKEN, Dataset, Examples, Public
from client.data.clients import digest_clients
from client.parameters import layout_of
from experiments.settings.compose import compose, split
from experiments.settings.data import (
    WITH_TEXTS,
    DatasetSettings,
    ModelSettings,
    arguments,
    check_none_held_out,
    load_dataset,
)
from experiments.settings.experiment import build_model
from experiments.settings.values import PRINTED, Output
from fedmf.errors import DataError, SettingError
from fedmf.randomness import SecretKey
from fedmf.setting import REQUIRED, setting
from fedmf.updates import wire
from fedmf.updates.rotation import padded_dimension
from server.exchange import LEAST_MESSAGE

OVERRIDES = "overrides"  # the key of a run's and of a node's configuration in Flower
READY = "ready"  # another one of a node's: the file that node_check leaves where its data load
UNGIVEN = "logistic"  # the default model of node_check; texts cannot be trained on with it
OF_NO_PERSON = ("digits", "synthetic")  # datasets whose test sets contain no person's: a node may read them


@dataclass(frozen=True)
class NodeSettings:
    """Keys of a node and of the command node_check."""

    dataset: DatasetSettings = setting(REQUIRED, "dataset with this node's clients", chosen="digits")
    model: ModelSettings = setting(
        REQUIRED,
        "model, which decides how texts are split; model.start=FILE is this node's copy of the run's model.start",
        chosen=UNGIVEN,
    )
    clients: int = setting(
        REQUIRED, "number of clients that this node declares; public, and independent of the data", at_least=1
    )
    public: Mapping[str, object] | None = setting(
        None,
        "shape, classes and (unless it is classification) task of all examples, as the server logs them, such as {shape: [8, 8], classes: 10}; "
        "null for digits and synthetic only",
    )
    first: int = setting(
        0,
        "index of this node's first client in the dataset; the node has clients first to first + clients - 1",
        at_least=0,
    )
    ready: str | None = setting(
        None,
        "file that is written only if the dataset loads as a whole, for the node to report; no client's values are read, "
        "and the exit code is 0 either way",
    )
    output: Output = setting("text", PRINTED)

    def __post_init__(self) -> None:
        check_none_held_out(self.dataset)


@dataclass(frozen=True)
class Node:
    """A node's dataset, of which `settings.clients` clients from number `settings.first` on are the node's.

    What the node declares does not depend on whether the data can be loaded: a client whose data cannot be takes part with a
    zero update, as the privacy theorem needs.
    """

    settings: NodeSettings

    @property
    def dataset(self) -> Dataset:
        """The node's dataset. Raises what its loader raised where it cannot be loaded."""
        if isinstance(self._loaded, Exception):
            raise self._loaded
        return self._loaded

    @cached_property
    def _loaded(self) -> Dataset | Exception:
        """The dataset, or why there is none: tried once, for all the clients of a message."""
        given, model = arguments(self.settings.dataset), self.settings.model.name
        try:
            return load_dataset(given, model, public_of(self.settings))
        except Exception as error:
            return error

    def examples_of(self, client_name: str, context: object = None) -> Examples:
        """Return the examples of the client KEY:NUMBER. Raises `DataError` for a number that this node lacks."""
        number = int(client_name.rpartition(":")[2])
        declared, first, held = self.settings.clients, self.settings.first, len(self.dataset.clients)
        if not 0 <= number < declared or first + number >= held:
            raise DataError(
                f"client number {number} is asked for; this node declares {declared} clients from number "
                f"{first} of a dataset that holds {held}."
            )
        return self.dataset.clients[first + number]

    def digest(self, key: SecretKey) -> str:
        """Return a digest under `key` of who the node's clients are, in order; "" where the data cannot be loaded."""
        first = self.settings.first
        try:
            return digest_clients(self.dataset.clients, key, first, first + self.settings.clients)
        except (Exception, SystemExit):  # what a node declares must not fail with its data
            return ""


def public_of(settings: NodeSettings) -> Public | None:
    """Return what is public of all examples, None for data that are no person's. Raises `SettingError` where it is not said."""
    dataset = settings.dataset
    if settings.public is None:
        if dataset.name in OF_NO_PERSON:
            return None
        raise SettingError(
            "public is null; a node reads no test set, so that it must be what the server logs when a run begins "
            "(public={shape:[8,8],classes:10}, for example)."
        )
    public = Public.of(settings.public)
    of_words = settings.model.name != "char_lstm" and getattr(dataset, "level", None) != "characters"
    of_texts = dataset.name in ("by_user_text", *WITH_TEXTS) and public.task == NEXT_TOKEN
    if of_texts and of_words and dataset.vocabulary is None:
        raise SettingError(
            "dataset.vocabulary is null; a node's words must be those of the server's public file, and not counted from "
            "its own texts."
        )
    return public


def asked_digest(node: Node, message: Message) -> dict[str, str]:
    """Return the node's digest under the key in `message`, as fields of an answer; empty where none is asked for."""
    question = message.content.config_records.get(wire.HELD)
    if question is None or wire.DIGEST_KEY not in question:
        return {}
    return {wire.DIGEST: node.digest(SecretKey(bytes(question[wire.DIGEST_KEY])))}  # type: ignore[arg-type]


def examine(node: Node) -> dict[str, Any]:
    """Return what `node` holds, every client of it read once. Raises `DataError` for data that would be zeroed.

    The parameters of the model are not counted where none is given for texts.
    """
    settings = node.settings
    held = len(node.dataset.clients) - settings.first
    if held < settings.clients:
        raise DataError(
            f"clients is {settings.clients}, but from first={settings.first} on the dataset holds {max(held, 0)}; "
            "what is declared and not there takes part with zero updates."
        )
    # Looks at all their values.
    sizes = [len(node.examples_of(f":{number}")) for number in range(settings.clients)]
    counted = {}
    if node.dataset.task != NEXT_TOKEN or settings.model.name != UNGIVEN:
        parameters = layout_of(build_model(settings.model, node.dataset, seed=0)).dimension
        counted = {"parameters": parameters, "largest_request_bytes": largest_request(parameters)}
    return {
        "dataset": node.dataset.name,
        "unit": node.dataset.unit,
        "clients": settings.clients,
        "clients_in_the_data_set": len(node.dataset.clients),
        "examples": sum(sizes),
        "examples_of_the_smallest_client": min(sizes),
        "examples_of_the_largest_client": max(sizes),
        "input_shape": list(node.dataset.input_shape),
        "classes": node.dataset.classes,
        **counted,
    }


def largest_request(parameters: int) -> int:
    """Return the bytes of the largest request that an honest node sends in runs of a model of `parameters` parameters.

    That is a reply. Clients of one node share one while their expected values are no more than the larger of 4 MiB and
    the padded model in float32 (`server.exchange.tasks_per_message`); one client's values are never more than that
    model. A sixteenth is for how many coordinates were kept at random, 2 MiB for what travels with the values of 10,000
    clients and for requests that hold no values.
    """
    values = max(LEAST_MESSAGE, 4 * padded_dimension(parameters, "hadamard"))
    return values + values // 16 + (2 << 20)


def readiness(node: Node) -> str:
    """Return why the node is not ready, "" where it is: its dataset loads, and holds the clients that it declares.

    It has no full stop, because it becomes part of other sentences.

    What is claimed is of the moment before the node started, and of the dataset as a whole: its files are there, can be
    read and have the form that they should have, and there are as many clients as its operator declared. Values that
    cannot be trained on, and whatever happens to the data after the start, cost zero updates as before. With `classes`
    declared no single label, feature or picture decides who else takes part or when: what else the settings leave open is
    read off most rows (docs/data.md), and so off a client that holds most of them. Where `features` and `labels` are
    declared too, a table of numbers is ready whatever these hold.

    The claim reveals one bit for each start. A file that cannot be read as a whole counts, because its operator made it and
    fixes it; in the neighbours of the theorem (zero-out, replacement) every client keeps its place in the file, so that
    both have as many. An operator who leaves a person out of the file must declare one client less: a file that
    is short makes the node not ready. Where the server's policy is to wait, no release depends on the claim at all.
    """
    declared, first = node.settings.clients, node.settings.first
    try:
        held = len(node.dataset.clients) - first
    except (Exception, SystemExit) as error:  # whatever a custom loader raises
        return f"its data cannot be loaded: {str(error).removesuffix('.') or type(error).__name__}"
    if held < declared:
        return f"it declares {declared} clients, and from number {first} on its data hold {max(held, 0)}"
    return ""


def readiness_claim(config: Mapping[str, object]) -> dict[str, bool]:
    """Return what a node with this --node-config states of its readiness, as fields of an answer.

    That is what node_check found when the node started: `ready=FILE` is there. Without the key nothing is stated.
    """
    return {wire.READY: Path(str(config[READY])).exists()} if READY in config else {}


def node_settings(overrides: object) -> NodeSettings:
    """Return the node's settings that the text `overrides` stands for. Raises `SettingError` for none."""
    if not isinstance(overrides, str) or not overrides.strip():
        raise SettingError(
            "the SuperNode was started without --node-config 'overrides=\"clients=... dataset=...\"', "
            "so that it holds no clients."
        )
    return compose("node_check", split(overrides), NodeSettings)
