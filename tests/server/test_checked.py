"""A custom optimizer: what it may not do, and that it cannot do it."""

import sys
from fractions import Fraction

import numpy as np
import pytest

from fedmf.errors import RunStoppedError, SettingError
from server.checked import Checked, rehearse
from server.optimizer import Optimizer

START = np.linspace(-1, 1, 9).astype("f4")
STATE = {"count": np.array(0), "last": np.zeros_like(START)}


def init(parameters):
    return {"count": np.array(0), "last": np.zeros_like(parameters)}


def update(release, state, parameters, progress):
    """A step along the signs that depends on the count of steps."""
    step = np.float32(0.1 * 2.0 ** state["count"])
    return parameters + step * np.sign(release), {"count": state["count"] + 1, "last": release}


def checked(init=init, update=update, **more):
    return Checked(lambda: Optimizer(init, update, **more), "mine:wrong")


def test_an_optimizer_that_does_as_it_should_is_passed_through():
    optimizer = checked(momentum=0.25)
    assert (optimizer.momentum, optimizer.schedule, optimizer.precondition) == (0.25, "constant", False)
    for allowed in (optimizer, checked(**scaled(*[1e-6] * 9)), checked(**scaled(*[1e6] * 9))):
        assert len(rehearse(allowed, START)) == 16
    assert type(checked(momentum=Fraction(1, 2)).momentum) is float
    model, state = optimizer.update(START, optimizer.init(START), START)
    np.testing.assert_array_equal(model, START + np.float32(0.1) * np.sign(START))
    assert int(state["count"]) == 1


def test_what_an_optimizer_changes_in_place_is_its_own_copy():
    def changing(release, state, parameters, progress):
        parameters += release
        state["last"] += release
        state["count"] += 1
        release[:] = 0
        return parameters, state

    optimizer, release = checked(update=changing), START + 1
    assert len(rehearse(optimizer, START.copy())) == 16
    given = START.copy(), optimizer.init(START)
    model, state = optimizer.update(release, given[1], given[0])
    np.testing.assert_array_equal(model, START + release)
    np.testing.assert_array_equal(state["last"], release)
    np.testing.assert_array_equal(given[0], START)
    assert not given[1]["last"].any()
    np.testing.assert_array_equal(release, START + 1)


def starting(state):
    return {"init": lambda parameters: state}


def stepping(result):
    return {"update": lambda x, s, m, p: result(m, s, x)}


def scaled(*values):
    return {"scale": lambda state: np.array(values, "f4")}


BROKEN = {
    "raises": (stepping(lambda m, s, x: 1 / 0), "update of mine:wrong raised ZeroDivisionError: division by zero"),
    "no pair": (stepping(lambda m, s, x: m), r"update of mine:wrong raised ValueError: too many values"),
    "float64": (stepping(lambda m, s, x: (m.astype("f8"), s)), r"'the model': 'float64 \[9\]'.* it must keep names, shapes and types.*'float32 \[9\]'"),
    "no array": (stepping(lambda m, s, x: (3.0, s)), r"'the model': 'float64 \[\]'"),
    "other slots": (stepping(lambda m, s, x: (m, {"last": x})), "it must keep names, shapes and types"),
    "other type": (
        stepping(lambda m, s, x: (m, {**s, "count": s["count"] + 0.5})), "count': 'float64.*it must keep names",
    ),
    "no mapping": (stepping(lambda m, s, x: (m, [x])), "is a list; it must be a mapping"),
    "state of another shape": (
        starting({"square": np.zeros((9, 9))}),
        r"the state of mine:wrong holds 'square', float64 \[9, 9\].*numbers of shape \[\] or \[9\]",
    ),
    "state of texts": (starting({"last": "a"}), "holds 'last', <U1"),
    "name of a path": (starting({"../a": 1.0}), "holds '../a', .*under words"),
    "ragged state": (starting({"last": [[1.0], [2.0, 3.0]]}), "init of mine:wrong raised ValueError"),
    "raises without a word": (
        {"init": lambda parameters: sys.exit()},
        r"init of mine:wrong raised SystemExit\.",
    ),
    "an exit": ({"init": lambda parameters: sys.exit(0)}, "init of mine:wrong raised SystemExit: 0"),
    "scale too large": (scaled(*[1] * 8, 3e38), r"scale of mine:wrong .* to 3e\+38; .* in \[1e-06, 1e\+06\]"),
    "scale too small": (scaled(*[1] * 8, 1e-7), r"scale of mine:wrong is float32 \[9\] from 1e-07 to 1;"),
    "scale not a number": (scaled(*[1] * 8, np.nan), "scale of mine:wrong .* nan"),
    "scale of another shape": (scaled(1, 1, 1), r"scale of mine:wrong is float32 \[3\] .*it must be float32 of the model's shape"),
    "step to nowhere": (stepping(lambda m, s, x: (m * np.float32(np.inf), s)), "made numbers that are not finite"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_step_or_state_is_an_error_before_a_run(name):
    functions, said = BROKEN[name]
    with pytest.raises(SettingError, match=said):
        rehearse(checked(**functions), START)


def test_an_error_in_a_later_round_stops_the_run_and_can_be_resumed():
    def late(release, state, parameters, progress):
        if state["count"] > 5:
            raise ValueError("too late.")
        return parameters, {**state, "count": state["count"] + 1}

    optimizer = checked(update=late)
    rehearse(optimizer, START)
    with pytest.raises(RunStoppedError, match=r"update of mine:wrong raised ValueError: too late\.$"):
        optimizer.update(START, {**STATE, "count": np.array(6)}, START)


SEEN = [0]


def counting_for_all():
    """Keeps its count where all optimizers of the process see it."""

    def update(release, state, parameters, progress):
        SEEN[0] += 1
        return parameters + release / np.float32(SEEN[0]), state

    return Optimizer(init, update)


def remembering():
    """Keeps outside the state what only its scale needs."""
    seen = [1.0]

    def update(release, state, parameters, progress):
        seen.append(min(seen[-1], float(abs(release).max())))
        return parameters + release, state

    return Optimizer(init, update, scale=lambda state: np.full(9, seen[-1], "f4"))


def lacking():
    """Keeps outside the state what it makes in `init`."""
    kept = {}

    def init(parameters):
        kept["velocity"] = np.zeros_like(parameters)
        return {}

    return Optimizer(init, lambda x, s, m, p: (m + x + kept["velocity"], s))


@pytest.mark.parametrize("make", [counting_for_all, remembering, lacking])
def test_draws_and_what_is_kept_outside_the_state_are_an_error(make):
    """Steps from the first one on may repeat themselves; a run that is resumed begins in the middle."""
    said = "update of mine:wrong raised" if make is lacking else "it made another model of the same state"
    with pytest.raises(
        SettingError,
        match=rf"mine:wrong cannot continue from its own state.*{said}.*must be a pure function.*scalar arrays",
    ):
        rehearse(Checked(make, "mine:wrong"), START)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"momentum": 1.0}, r"the momentum of mine:wrong is 1.0; it must lie in \[0, 1\)"),
        ({"momentum": "much"}, "the momentum of mine:wrong is much"),
        ({"momentum": True}, "the momentum of mine:wrong is True"),
        ({"momentum": np.float32("nan")}, "the momentum of mine:wrong is nan"),
        ({"schedule": "linear"}, "the schedule of mine:wrong is 'linear'"),
        ({"schedule": np.ones(2)}, "the schedule of mine:wrong is"),
    ],
)
def test_what_the_noise_cannot_be_fitted_to_is_an_error(more, said):
    with pytest.raises(SettingError, match=said):
        checked(**more)


def test_what_a_state_holds_is_out_of_the_reach_of_its_optimizer():
    """An optimizer that reuses its buffers would change a state that a checkpoint or a retry still needs."""
    buffer = np.zeros(9, "f4")

    def reusing(release, state, parameters, progress):
        buffer[:] = release
        return buffer, {**state, "last": buffer}

    model, state = checked(update=reusing).update(START, STATE, START)
    buffer[:] = 7
    np.testing.assert_array_equal(model, START)
    np.testing.assert_array_equal(state["last"], START)


def test_the_digest_changes_with_what_an_optimizer_does_and_with_nothing_else():
    def digest(rate):
        return rehearse(checked(update=lambda x, s, m, p: (m + np.float32(rate) * x, s)), START)

    assert digest(0.1) == digest(0.1 * (1 + 1e-9)) != digest(0.2)
