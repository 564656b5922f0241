"""The command: which keys belong to which test, and exit code 1 where a promise was not kept."""

import pytest

from experiments.soak import __main__ as command
from experiments.soak import checks, deployment
from experiments.soak.__main__ import SoakSettings, soak
from experiments.soak.evidence import Evidence
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


def spoilt(tmp_path, *, released, violated):
    """The report of a run with one fault."""
    struck = deployment.Struck(Planned(1, "node_killed", "node1", 2), 10.0, 12.0, released)
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


@pytest.mark.parametrize(("released", "violated"), [(None, False), (15.0, True)])
def test_a_promise_that_was_not_kept_is_exit_code_1(tmp_path, released, violated, monkeypatch, capsys):
    outcome = spoilt(tmp_path, released=released, violated=violated)
    assert len(outcome["violations"]) == 1
    monkeypatch.setattr(deployment, "soak", lambda *_: outcome)
    for form in command.Output:
        with pytest.raises(RunStoppedError, match="1 promises were not kept"):
            soak(settings(deployment=True, output=form))
    assert "violated: " in capsys.readouterr().out
