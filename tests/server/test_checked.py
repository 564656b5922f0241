"""An optimizer of one's own: what it may not do, and that it cannot do it."""

import sys
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
import pytest

from fedmf.errors import RunStoppedError, SettingError
from server.checked import Checked, rehearse
from server.optimizer import Optimizer, Sgd

START = np.linspace(-1, 1, 9).astype("f4")


class Mine(Optimizer):
    """Signs, and a count of steps."""

    momentum = 0.25

    def first(self, model):
        return {"count": np.array(0), "last": np.zeros_like(model)}

    def step(self, model, slots, mean, *, progress=0.0):
        return model + np.float32(0.1) * np.sign(mean), {"count": slots["count"] + 1, "last": mean}


def wrong(**methods):
    """An optimizer like `Mine` with other methods or attributes."""
    return Checked(type("Wrong", (Mine,), methods)(), "mine:Wrong")


def test_an_optimizer_that_does_as_it_should_is_passed_through():
    optimizer = Checked(Mine(), "mine:Mine")
    assert (optimizer.momentum, optimizer.schedule, optimizer.precondition) == (0.25, "constant", False)
    assert len(rehearse(optimizer, START)) == 16
    model, slots = optimizer.step(START, optimizer.first(START), START)
    np.testing.assert_array_equal(model, START + np.float32(0.1) * np.sign(START))
    assert int(slots["count"]) == 1


def stepping(result):
    """A step that returns `result(model, slots, mean)`."""
    return {
        "step": lambda self, model, slots, mean, *, progress=0.0: result(model, slots, mean),
    }


def in_place(model, slots, mean):
    model += mean
    return model, slots


def in_place_of_the_state(model, slots, mean):
    slots["last"] += mean
    return model + mean, slots


BROKEN = {
    "raises": (stepping(lambda m, s, x: 1 / 0), "step of mine:Wrong raised ZeroDivisionError: division by zero"),
    "no pair": (stepping(lambda m, s, x: m), r"returned a ndarray; it must return \(model, slots\)"),
    "float64": (stepping(lambda m, s, x: (m.astype("f8"), s)), r"shape \[9\] and type float64; it must be"),
    "shape": (stepping(lambda m, s, x: (m[:3], s)), r"an array of shape \[3\] and type float32"),
    "no array": (stepping(lambda m, s, x: (3.0, s)), "returned a float; it must be an array"),
    "other slots": (stepping(lambda m, s, x: (m, {"last": x})), "it must keep names, shapes and types"),
    "other type": (
        stepping(lambda m, s, x: (m, {**s, "count": s["count"] + 0.5})), "count': 'float64.*it must keep names",
    ),
    "no mapping": (stepping(lambda m, s, x: (m, [x])), "is a list; it must be a mapping"),
    "model changed in place": (stepping(in_place), "raised ValueError: output array is read-only"),
    "state changed in place": (stepping(in_place_of_the_state), "raised ValueError: output array is read-only"),
    "state of another shape": (
        {"first": lambda self, model: {"square": np.zeros((9, 9))}},
        r"square in the state of mine:Wrong is an array of shape \[9, 9\].*numbers of shape \[\] or \[9\]",
    ),
    "state of texts": ({"first": lambda self, model: {"last": "a"}}, "last in the state of mine:Wrong is a str"),
    "state of objects": ({"first": lambda self, model: {"last": {}}}, "last in the state of mine:Wrong is a dict"),
    "name of a path": ({"first": lambda self, model: {"../a": 1.0}}, "names an array '../a'; it must be a word"),
    "scale below 0": (
        {"precondition": True, "scale": lambda self, slots: -START}, "scale of mine:Wrong holds -.*must lie in",
    ),
    "scale too large": (
        {"precondition": True, "scale": lambda self, slots: np.full(9, 3e38, "f4")},
        r"scale of mine:Wrong holds 3e\+38; all of it must lie in \[1e-06, 1e\+06\]",
    ),
    "scale too small": (
        {"precondition": True, "scale": lambda self, slots: np.full(9, 1e-7, "f4")}, "scale of mine:Wrong holds 1e-07",
    ),
    "scale not a number": (
        {"precondition": True, "scale": lambda self, slots: np.full(9, np.nan, "f4")}, "scale of mine:Wrong holds nan",
    ),
    "ragged state": (
        {"first": lambda self, model: {"last": [[1.0], [2.0, 3.0]]}}, "reading the state of mine:Wrong raised ValueError",
    ),
    "an exit in first": ({"first": lambda self, model: sys.exit(0)}, "first of mine:Wrong raised SystemExit: 0"),
    "an exit in step": (stepping(lambda m, s, x: sys.exit(0)), "step of mine:Wrong raised SystemExit: 0"),
    "an exit in scale": (
        {"precondition": True, "scale": lambda self, slots: sys.exit(0)}, "scale of mine:Wrong raised SystemExit: 0",
    ),
    "scale of another shape": (
        {"precondition": True, "scale": lambda self, slots: np.ones(3, "f4")}, r"scale of mine:Wrong returned an array",
    ),
    "no scale": ({"precondition": True}, "scale of mine:Wrong raised NotImplementedError"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_step_or_state_is_refused_before_a_run(name):
    methods, said = BROKEN[name]
    with pytest.raises(SettingError, match=said):
        rehearse(wrong(**methods), START)


def test_an_error_in_a_later_round_stops_the_run_and_can_be_resumed():
    def late(model, slots, mean):
        if slots["count"] > 5:
            raise ValueError("too late.")
        return model, {**slots, "count": slots["count"] + 1}

    optimizer = wrong(**stepping(late))
    rehearse(optimizer, START)
    slots = {**optimizer.first(START), "count": np.array(6)}
    with pytest.raises(RunStoppedError, match=r"step of mine:Wrong raised ValueError: too late\.$"):
        optimizer.step(START, slots, START)


def drawing(model, slots, mean):
    return model + np.random.default_rng().normal(size=9).astype("f4"), slots


class Keeping(Mine):
    """Keeps its velocity in itself."""

    def __init__(self):
        self.velocity = 0.0

    def step(self, model, slots, mean, *, progress=0.0):
        self.velocity = 0.5 * self.velocity + mean
        return (model + self.velocity).astype("f4"), slots


@pytest.mark.parametrize("optimizer", [wrong(**stepping(drawing)), Checked(Keeping(), "mine:Wrong")])
def test_an_optimizer_that_draws_or_keeps_a_state_of_its_own_is_refused(optimizer):
    with pytest.raises(
        SettingError, match="made another model of the same state and update when asked again"
    ):
        rehearse(optimizer, START)


class Counting(Mine):
    """Corrects m for its bias by a count in the object, which `first` sets back."""

    def first(self, model):
        self.steps = 0
        return {"m": np.zeros_like(model)}

    def step(self, model, slots, mean, *, progress=0.0):
        self.steps += 1
        m = np.float32(0.9) * slots["m"] + np.float32(0.1) * mean
        return model + m / np.float32(1 - 0.9**self.steps), {"m": m}


class CountingFromTheStart(Counting):
    """Has its count before `first` too."""

    steps = 0


class Dropping(Mine):
    """Drops coordinates by a generator in the object, which `first` sets back."""

    def __init__(self):
        self.draws = np.random.default_rng(0)

    def first(self, model):
        self.draws = np.random.default_rng(0)
        return {}

    def step(self, model, slots, mean, *, progress=0.0):
        return model + mean * (self.draws.random(len(model)) < 0.5), slots


class CountingInItsClass(Mine):
    """Keeps its count where all objects see it."""

    steps: ClassVar = [0]

    def first(self, model):
        self.steps[0] = 0
        return {}

    def step(self, model, slots, mean, *, progress=0.0):
        self.steps[0] += 1
        return model + mean / np.float32(self.steps[0]), slots


class Remembering(Mine):
    """Keeps in the object what only its scale needs."""

    precondition = True

    def __init__(self):
        self.least = 1.0

    def first(self, model):
        self.least = 1.0
        return {"last": np.zeros_like(model)}

    def step(self, model, slots, mean, *, progress=0.0):
        self.least = min(self.least, float(abs(mean).max()))
        return model + mean, {"last": mean}

    def scale(self, slots):
        return np.full_like(slots["last"], self.least)


KEEPS_STATE = {
    "a count": (Counting, r"cannot go on from a state .*raised AttributeError"),
    "a count from the start": (CountingFromTheStart, "made another model of a state of its own"),
    "a generator": (Dropping, "made another model of a state of its own"),
    "a count in the class": (CountingInItsClass, "made another model of a state of its own"),
    "a size for the scale": (Remembering, "made another model of a state of its own"),
}


@pytest.mark.parametrize("name", KEEPS_STATE)
def test_a_state_in_the_object_that_first_sets_back_is_refused(name):
    """Steps from the first one on repeat themselves; a run that is resumed begins in the middle."""
    kind, said = KEEPS_STATE[name]
    with pytest.raises(
        SettingError, match=rf"{said}.*Keep what a step needs .* in the state .*scalar arrays"
    ):
        rehearse(Checked(kind(), "mine:Wrong"), START)


class DrawingWhenMade(Mine):
    """Has signs of its own, another set for each object."""

    def __init__(self):
        self.signs = np.random.default_rng().choice(np.array([-1, 1], "f4"), 9)

    def step(self, model, slots, mean, *, progress=0.0):
        return model + self.signs * mean, slots


def test_an_object_that_is_another_each_time_it_is_made_is_refused():
    """A copy of it would do the same; the process that resumes a run makes it anew."""
    rehearse(Checked(DrawingWhenMade(), "mine:Wrong"), START)
    made = Checked(DrawingWhenMade(), "mine:Wrong", DrawingWhenMade)
    with pytest.raises(SettingError, match="made another model of a state of its own"):
        rehearse(made, START)


def test_a_count_in_the_state_is_no_state_of_its_own():
    def corrected(model, slots, mean):
        count = slots["count"] + 1
        return model + mean / np.float32(1 - 0.9**count), {**slots, "count": count}

    assert len(rehearse(wrong(**stepping(corrected)), START)) == 16


def test_a_step_to_nowhere_is_refused():
    with pytest.raises(SettingError, match="made numbers that are not finite"):
        rehearse(wrong(**stepping(lambda m, s, x: (m * np.float32(np.inf), s))), START)


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"momentum": 1.0}, r"the momentum of mine:Wrong is 1.0; it must lie in \[0, 1\)"),
        ({"momentum": "much"}, "mine:Wrong has momentum 'much'"),
        ({"schedule": "linear"}, "the schedule of mine:Wrong is 'linear'"),
        ({"precondition": 1}, "mine:Wrong has precondition 1"),
        ({"momentum": True}, "mine:Wrong has momentum True"),
        ({"momentum": np.float32("nan")}, "the momentum of mine:Wrong is nan"),
        ({"momentum": 10**400}, "the momentum of mine:Wrong is 10"),
        ({"schedule": np.ones(2)}, r"mine:Wrong has schedule array\(\[1., 1.\]\); it must be a text"),
        ({"momentum": property(lambda self: 1 / 0)}, "momentum of mine:Wrong raised ZeroDivisionError"),
        ({"schedule": property(lambda self: sys.exit(0))}, "schedule of mine:Wrong raised SystemExit: 0"),
    ],
)
def test_what_the_noise_cannot_be_fitted_to_is_refused(attributes, said):
    with pytest.raises(SettingError, match=said):
        wrong(**attributes)


@pytest.mark.parametrize("momentum", [np.float32(0.5), np.float64(0.5), Fraction(1, 2)])
def test_a_momentum_is_a_number_of_any_type_and_then_a_float(momentum):
    assert type(wrong(momentum=momentum).momentum) is float
    assert wrong(momentum=momentum).momentum == 0.5


@pytest.mark.parametrize("value", [1e-6, 1.0, 1e6])
def test_a_scale_up_to_the_bounds_is_taken(value):
    optimizer = wrong(precondition=True, scale=lambda self, slots: np.full(9, value, "f4"))
    assert len(rehearse(optimizer, START)) == 16


def test_what_a_state_holds_is_out_of_the_reach_of_its_optimizer():
    """An optimizer that reuses its buffers would change a state that a checkpoint or a retry still needs."""
    buffer = np.zeros(9, "f4")

    def reusing(model, slots, mean):
        buffer[:] = mean
        return buffer, {**slots, "last": buffer}

    optimizer = wrong(**stepping(reusing))
    model, slots = optimizer.step(START, optimizer.first(START), START)
    buffer[:] = 7
    np.testing.assert_array_equal(model, START)
    np.testing.assert_array_equal(slots["last"], START)


def test_the_digest_changes_with_what_an_optimizer_does_and_with_nothing_else():
    @dataclass(frozen=True)
    class Rate(Mine):
        rate: float

        def step(self, model, slots, mean, *, progress=0.0):
            return model + np.float32(self.rate) * mean, slots

    assert rehearse(Rate(0.1), START) == rehearse(Rate(0.1 * (1 + 1e-9)), START)
    assert rehearse(Rate(0.1), START) != rehearse(Rate(0.2), START)
    assert rehearse(Sgd(0.1), START) != rehearse(Sgd(0.1, 0.5), START)
