"""What a turn leaves in a model's attributes is seen, whatever holds it, so that nothing reaches the next client."""

import logging
import random
from collections import Counter, deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from client.contents import contents
from client.settings import TrainingSettings
from client.training import Trainer


class Holder:
    """An object of a user's own."""

    def __init__(self):
        self.inner = {"seen": [0]}


class Slotted:
    """An object without a dictionary."""

    __slots__ = ("count",)

    def __init__(self):
        self.count = 0


def ring():
    """A list that holds itself."""
    held = [1.0]
    held.append(held)
    return held


def of_objects():
    return np.array([[1], None], dtype=object)


CHANGES = {
    "a tensor": (lambda: torch.zeros(3), lambda held: held.add_(1)),
    "a tensor behind torch's back": (lambda: torch.zeros(3), lambda held: held.numpy().__iadd__(1)),
    "a tensor's sign of zero": (lambda: torch.zeros(3), lambda held: held.mul_(-1)),
    "an array": (lambda: np.zeros(3), lambda held: held.__iadd__(1)),
    "an array of objects": (of_objects, lambda held: held[0].append(2)),
    "a list": (list, lambda held: held.append(1.0)),
    "a list that holds itself": (ring, lambda held: held.__setitem__(0, 2.0)),
    "a dict in a dict": (lambda: {"a": {"b": 1}}, lambda held: held["a"].update(b=2)),
    "a set": (set, lambda held: held.add(1)),
    "a counter": (Counter, lambda held: held.update("a")),
    "a deque": (deque, lambda held: held.append(1)),
    "a namespace": (lambda: SimpleNamespace(a=1), lambda held: setattr(held, "a", 2)),
    "an object": (Holder, lambda held: held.inner["seen"].append(1)),
    "an object with slots": (Slotted, lambda held: setattr(held, "count", 1)),
    "numpy's generator": (lambda: np.random.default_rng(0), lambda held: held.random()),
    "torch's generator": (
        lambda: torch.Generator().manual_seed(0),
        lambda held: torch.rand(1, generator=held),
    ),
    "Python's generator": (lambda: random.Random(0), lambda held: held.random()),
    "a tensor in a tuple": (lambda: (torch.zeros(1),), lambda held: held[0].add_(1)),
}


class Remembering(nn.Module):
    """A linear model with one more attribute, that forward `changes`."""

    def __init__(self, held, changes):
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.held, self.changes = held, changes

    def forward(self, x):
        self.changes(self.held)
        return self.linear(x)


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_inside_an_attribute_is_a_change_of_the_model(kind):
    make, change = CHANGES[kind]
    x, y = np.ones((3, 4), "f4"), np.array([0, 1, 1])
    for changes, same in ((change, False), (lambda held: None, True)):
        model = nn.Sequential(nn.Linear(4, 4), Remembering(make(), changes))
        trainer = Trainer(model, TrainingSettings(0.1))
        assert trainer.is_as_made()
        start = trainer._flat.numpy().copy()
        trainer.update(start, x, y, order=np.random.default_rng(0))
        assert trainer.is_as_made() is same


def test_what_changes_by_itself_or_cannot_change_is_let_pass():
    logger = logging.getLogger("of the model")
    before = contents(logger)
    logger.isEnabledFor(logging.DEBUG)  # is kept in the logger
    assert contents(logger) == before
    for held in (print, nn.ReLU, np, 3, "text", None, torch.float32):
        assert contents(held) == contents(held)


def test_equal_contents_of_two_objects_are_the_same_and_a_nan_equals_itself():
    assert contents([float("nan"), 1]) == contents([float("nan"), 1])
    assert contents([0.0]) != contents([-0.0])
    assert contents([1]) != contents([True])


class Noted(list):
    """A list with an attribute of its own, as only what derives from a builtin type has."""

    note = None


class NotedKeys(dict):
    """A dictionary with a slot of its own."""

    __slots__ = ("note",)


@pytest.mark.parametrize("kind", [Noted, NotedKeys])
def test_attributes_of_what_derives_from_a_builtin_container_are_looked_at(kind):
    held = [kind()]
    held[0].note = [1]
    before = contents(held)
    assert contents(held) == before
    held[0].note.append(2)
    assert contents(held) != before
