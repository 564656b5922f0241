"""What a dataset must be at load, what a client must be when it is read, and what a user's own loader may raise."""

from dataclasses import replace

import numpy as np
import pytest

from client.data import CLASSIFICATION, NEXT_TOKEN, Dataset, Examples, load
from client.data.clients import LazyClients, digest_clients
from client.data.limits import limited as checked
from fedmf.errors import DataError
from plans import KEY


def examples(count=3, shape=(2,), x_type="f4", label=1):
    return Examples(np.zeros((count, *shape), x_type), np.full(count, label, np.int64))


def dataset(*clients, test=None, **changed):
    given = {"name": "mine", "input_shape": (2,), "classes": 3, "task": CLASSIFICATION} | changed
    return Dataset(
        clients=clients or [examples()],
        test=examples() if test is None else test,
        licence="l",
        source="s",
        unit="u",
        **given,
    )


def tokens(x, y=None):
    x = np.array([x], dtype=np.int64)
    return Examples(x, x if y is None else np.array([y], dtype=np.int64))


WRONG = [
    (examples(label=3), "the label 3; with classes=3 it must be 0 to 2"),
    (examples(label=-1), "a label that could not be read, or is none of the 3"),
    (examples(label=-100), "label -100"),
    (examples(shape=(3,)), r"inputs float32 \[3\]; an input of this dataset is float32 \[2\]"),
    (examples(x_type="f8"), "inputs float64"),
    (examples(count=0), "holds no example"),
    (Examples(np.full((1, 2), np.nan, "f4"), np.zeros(1, int)), "inputs that are not finite"),
    (Examples(np.full((1, 2), np.inf, "f4"), np.zeros(1, int)), "inputs that are not finite"),
    (Examples(np.zeros((1, 2), "f4"), np.zeros((1, 1), int)), r"targets int64 \[1\]"),
    (Examples(np.zeros((1, 2), "f4"), np.zeros(1, "i4")), "targets int32"),
    (Examples(np.zeros((1, 2), object), np.zeros(1, int)), "must be numbers"),
    (Examples([[0.0, 0.0]], [1]), "must be a numpy array"),
    ({"x": 1}, "is dict; it must be client.data.Examples"),
]


@pytest.mark.parametrize(("wrong", "sentence"), WRONG)
def test_a_client_that_is_not_as_promised_fails_when_it_is_read_and_the_others_do_not(wrong, sentence):
    held = checked(dataset(examples(), wrong, examples())).clients
    assert len(held[0]) == len(held[2]) == 3
    with pytest.raises(DataError, match=f"client 1 of dataset mine.*{sentence}|x of client 1.*{sentence}"):
        held[1]


@pytest.mark.parametrize(
    "wrong", [examples(label=3), examples(count=0), Examples([[0.0, 0.0]], [1]), {"x": 1}]
)
def test_a_test_set_that_is_not_as_promised_is_refused_at_once(wrong):
    with pytest.raises(DataError, match=r"the test set of dataset mine"):
        checked(dataset(test=wrong), path="x.npz")


@pytest.mark.parametrize(
    "wrong",
    [tokens([0, 5], [0, 1]), tokens([0, -1], [0, 1]), tokens([0, 1], [0, 5]), tokens([0, 1], [0, -7])],
)
def test_tokens_outside_the_vocabulary_fail_and_padding_does_not(wrong):
    good = tokens([0, 4], [1, -100])
    held = checked(dataset(good, wrong, test=good, classes=5, task=NEXT_TOKEN)).clients
    assert held[0].y.tolist() == [[1, -100]]
    with pytest.raises(DataError, match=r"client 1 of dataset mine holds (the|a) (token|label)"):
        held[1]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"classes": 0}, "mine .* classes is 0"),
        ({"classes": "ten"}, "mine .* classes is ten"),
        ({"classes": True}, "mine .* classes is True"),
        ({"input_shape": (0,)}, "shape is 0; it must be"),
        ({"input_shape": "ab"}, "shape is 'ab'; it must be"),
        ({"input_shape": (3,)}, "an input of this dataset is float32"),
        ({"task": NEXT_TOKEN}, "tokens are integers"),
    ],
)
def test_public_figures_that_cannot_be_right_are_refused(changed, sentence):
    with pytest.raises(DataError, match=sentence):
        checked(dataset(**changed))


def test_a_data_set_of_other_targets_than_labels_is_held_to_its_test_set():
    """Soft labels, and maps of labels with places that do not count."""
    soft = Examples(np.zeros((2, 2), "f4"), np.full((2, 3), 0.3, "f4"))
    maps = Examples(np.zeros((2, 2), "f4"), np.array([[0, -100], [2, 1]]))
    for kind in (soft, maps):
        assert len(checked(dataset(kind, test=kind)).clients[0]) == 2
    with pytest.raises(DataError, match="targets that are not finite"):
        _ = checked(dataset(replace(soft, y=soft.y * np.nan), test=soft)).clients[0]


class Failing(LazyClients):
    """Clients of a user's own, of which the second raises."""

    def __len__(self):
        return 3

    def client(self, i):
        return examples(label=1 // (1 - i) if i < 2 else 0)

    def identify(self, fingerprint, numbers):
        raise SystemExit("no names")


LOADERS = """
import json
import numpy as np
from client.data import Dataset, Examples

def key() -> Dataset:
    return {}["x"]

def deep() -> Dataset:
    return json.loads("[")

def leave() -> Dataset:
    raise SystemExit(0)

def nothing() -> Dataset:
    return None

def no_examples() -> Dataset:
    one = Examples(np.zeros((1, 2), "f4"), np.zeros(1, int))
    return Dataset("mine", [one], {"x": 1, "y": 2}, (2,), 2, "classification", "l", "s", "u")

def takes_one(size) -> Dataset:
    return size + "text"
"""


@pytest.fixture
def loaders(tmp_path, monkeypatch):
    """A module of loaders of the user's own; returns its path."""
    name = f"loaders_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(LOADERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / f"{name}.py"


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("key", r"failed: KeyError: 'x' \(.*\.py:7\)\.$"),
        ("deep", r"failed: JSONDecodeError: .* \(.*\.py:10\)"),
        ("leave", r"failed: SystemExit: 0 \(.*\.py:13\)"),
        ("nothing", "returned NoneType; it must return a client.data.Dataset"),
        ("takes_one", r"failed: TypeError: unsupported operand .*\.py:23\)"),
    ],
)
def test_an_own_loader_that_fails_ends_in_a_sentence_with_type_message_and_place(
    loaders, function, sentence, caplog
):
    given = {"size": 3} if function == "takes_one" else {}
    with pytest.raises(DataError, match=sentence):
        load(f"{loaders.stem}:{function}", **given)
    assert ("Traceback" in caplog.text) is (function != "nothing")


def test_a_test_set_that_is_none_is_refused_before_it_is_shortened(loaders):
    with pytest.raises(DataError, match="the test set of dataset mine is dict"):
        load(f"{loaders.stem}:no_examples", max_test_examples=1)


def test_an_own_clients_failure_names_client_type_and_place(monkeypatch):
    held = checked(replace(dataset(), clients=Failing())).clients
    assert len(held[0]) == 3
    with pytest.raises(
        DataError, match=r"client 1 of dataset mine failed: ZeroDivisionError: .*test_checked\.py:\d+"
    ):
        held[1]
    with pytest.raises(
        DataError, match="identify of the clients of dataset mine failed: SystemExit: no names"
    ):
        digest_clients(held, KEY)
