"""An optimizer of one's own: what it may not do, and that it cannot do it."""

from dataclasses import dataclass

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
        {"precondition": True, "scale": lambda self, slots: -START}, "scale of mine:Wrong holds a value that is not",
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
            raise ValueError("too late")
        return model, {**slots, "count": slots["count"] + 1}

    optimizer = wrong(**stepping(late))
    rehearse(optimizer, START)
    slots = {**optimizer.first(START), "count": np.array(6)}
    with pytest.raises(RunStoppedError, match="step of mine:Wrong raised ValueError: too late"):
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


def test_a_step_to_nowhere_is_refused():
    with pytest.raises(SettingError, match="made numbers that are not finite"):
        rehearse(wrong(**stepping(lambda m, s, x: (m * np.float32(np.inf), s))), START)


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"momentum": 1.0}, r"the momentum of mine:Wrong is 1.0; it must lie in \[0, 1\)"),
        ({"momentum": "much"}, "mine:Wrong has momentum 'much'"),
        ({"schedule": "step"}, "the schedule of mine:Wrong is 'step'"),
        ({"precondition": 1}, "mine:Wrong has precondition 1"),
    ],
)
def test_what_the_noise_cannot_be_fitted_to_is_refused(attributes, said):
    with pytest.raises(SettingError, match=said):
        wrong(**attributes)


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
