"""The command: which keys belong to which test, and exit code 1 where a promise was not kept."""

import time

import pytest

from experiments.soak import __main__ as command, checks, deployment
from experiments.soak.__main__ import SoakSettings, soak
from experiments.soak.evidence import Evidence
from experiments.soak.faults import Fault
from experiments.soak.loopback_target import LoopbackTarget
from experiments.soak.schedule import Planned
from fedmf.errors import RunStoppedError, SettingError

DEFAULTS = SoakSettings(None, False, None, None, None, 0, (), None, command.Output.json)


def settings(**keys):
    return SoakSettings(**{**vars(DEFAULTS), **keys})


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"kills": 3, "deployment": True}, "kills is given with deployment=true, where it means nothing"),
        (
            {"minutes": 3.0},
            "minutes is given with deployment=false, where it means nothing; add deployment=true",
        ),
        ({"inject": ("node_killed",)}, "inject is given with deployment=false"),
        ({"nodes": 3}, "nodes is given with deployment=false"),
        ({"minutes": 0.0, "deployment": True}, "minutes is 0"),
        ({"nodes": 0, "deployment": True}, "nodes is 0"),
        ({"inject": (), "deployment": True}, "inject is \\[\\]; it must name a fault"),
        (
            {"inject": ("node_kiled",), "deployment": True},
            "inject is 'node_kiled'; it must be one of node_killed",
        ),
        ({"overrides": ("privacy.epsilon=0",), "deployment": True}, "privacy.epsilon is 0"),
    ],
)
def test_a_mistake_is_said_before_anything_is_started(keys, said, monkeypatch):
    monkeypatch.setattr(LoopbackTarget, "__enter__", lambda self: pytest.fail("started"))
    with pytest.raises(SettingError, match=said):
        soak(settings(**keys))


def spoilt(tmp_path, *, released, violated, seen=True):
    """The report of a run with one fault."""
    struck = deployment.Struck(Planned(1, "node_killed", "node1", 2), 10.0, 12.0, released, seen)
    said = {name: [] for name in checks.NAMES}
    said["released_once"] = ["round 2 was released 2 times"] if violated else []
    run = Evidence(tmp_path / "run-1")
    run.shown = [(9.0, 1), (15.0, 2)]
    looked = deployment.Examined(said, None, [(4, 4), (3, 4)])
    return deployment.report(7, 5.0, 9.0, [struck], [run], [looked])


def test_the_report_says_when_rounds_went_on_and_who_was_silent(tmp_path):
    outcome = spoilt(tmp_path, released=15.0, violated=False)
    assert outcome["violations"] == []
    [row] = outcome["faults"]
    assert row["seconds_until_release"] == 5.0
    assert (row["at"], row["lasted"], row["silent"], row["verdict"]) == (1.0, 2.0, 1, "went on")
    assert set(outcome["checks"].values()) == {1}


class Still:
    """A target of which nothing is asked but rounds, and which releases one whenever it is asked."""

    def __init__(self):
        self.rounds = 0

    def released(self):
        self.rounds += 1
        return self.rounds

    def tend(self):
        pass


@pytest.mark.parametrize(("looks", "seen"), [(3, True), (10**9, False)])
def test_a_fault_is_mended_after_it_was_seen_to_strike_or_did_not_for_long(monkeypatch, looks, seen):
    """It lasts as long as planned from then on: what had to wait for its moment would be over at once."""
    monkeypatch.setattr(deployment, "_LOOK", 0.001)
    monkeypatch.setattr(deployment, "_STRIKES", 0.05 if not seen else 60.0)
    asked, mended, struck_at = [], [], []

    def look():
        asked.append(1)
        struck_at[:] = struck_at or [time.monotonic()] * (len(asked) >= looks)
        return len(asked) >= looks

    fault = Fault("it takes a while", lambda *_: look, lambda *_: mended.append(len(asked)))
    monkeypatch.setitem(deployment.FAULTS, "node_killed", fault)
    _, [struck] = deployment.inject(Still(), [Planned(0.0, "node_killed", "a", 0.2)], 0)
    assert struck.seen is seen
    assert len(mended) == 1
    if seen:
        assert mended == [looks]
        assert struck.mended - struck_at[0] >= 0.2


@pytest.mark.parametrize(
    ("released", "violated", "seen"), [(None, False, True), (15.0, True, True), (15.0, False, False)]
)
def test_a_promise_that_was_not_kept_is_exit_code_1(tmp_path, released, violated, seen, monkeypatch, capsys):
    outcome = spoilt(tmp_path, released=released, violated=violated, seen=seen)
    assert len(outcome["violations"]) == 1
    monkeypatch.setattr(deployment, "soak", lambda *_: outcome)
    for form in command.Output:
        with pytest.raises(RunStoppedError, match="1 promises were not kept"):
            soak(settings(deployment=True, output=form))
    assert "violated: " in capsys.readouterr().out
