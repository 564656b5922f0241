"""Progress: clients are counted inside slow rounds, on every engine; lines come now and then where there is no terminal."""

import io
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict
from rich.console import Console

import runs
from client.app import make_client_app
from client.parameters import flat_parameters
from experiments.engines.engine import engine_workers, run_engine, shared_tasks
from experiments.engines.failures import ClientCount
from experiments.engines.grid import set_identity
from experiments.session.progress import LONGEST_LINE, View, facts, line
from experiments.settings.experiment import build, run_secret
from plans import small_plan
from poison import Spoilt
from server.cohort import SimulatedPopulation
from server.exchange import tasks_per_message
from server.state import first_state
from server.strategy import FedMF
from tasks import joint

ONE = ("dataset=synthetic", "dataset.clients=40", "dataset.features=4", "population.cohort_size=10",
       "population.epochs=1", "population.rounds_per_epoch=2", "run.reproducible=true")  # fmt: skip


class Clock:
    """Seconds that pass when they are told to."""

    now = 50.0

    def __call__(self):
        return self.now


def shown(number=88, rounds=176, epoch=4, epochs=8, **changes):
    given = {
        "scored": 80, "values": {"accuracy": 0.928}, "epsilon": 5.4712, "epsilon_end": 7.9996, "delta": 1e-4,
        "bytes_per_client": 785.0, "has_noise": True,
    }  # fmt: skip
    return facts(number, rounds, epoch, epochs, **(given | changes))


def play(view, clock, number, seconds, asked=4):
    view.on_clients(0, asked)
    for done in range(1, asked + 1):
        clock.now += seconds / asked
        view.on_clients(done, asked)
    view.show(number, shown(number, 20))


@pytest.fixture
def terminal(monkeypatch):
    """What is written to a terminal."""
    out = io.StringIO()
    console = partial(Console, file=out, force_terminal=True, width=100, _environ={})
    monkeypatch.setattr("experiments.session.progress.Console", lambda stderr: console())
    return out


def test_a_terminal_shows_a_bar_of_the_clients_inside_a_slow_round_and_none_in_a_fast_one(terminal):
    clock = Clock()
    with View(20, clock=clock) as view:
        play(view, clock, 1, 0.5)
        assert "clients of this round" not in terminal.getvalue()
        play(view, clock, 2, 8)
    shown = terminal.getvalue()
    assert "clients of this round" in shown
    for done in (1, 2, 3, 4):
        assert f"{done}/4" in shown


def test_a_bar_is_not_drawn_for_every_client_of_thousands(terminal):
    clock = Clock()
    with View(20, clock=clock) as view:
        play(view, clock, 1, 10, asked=5000)
    assert 50 <= terminal.getvalue().count("clients of this round") <= 105


def test_without_a_terminal_short_lines_come_now_and_then_and_the_last_always(capsys):
    clock = Clock()
    with View(20, clock=clock) as view:
        for number in range(1, 21):
            play(view, clock, number, 0.7)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == ["8/20", "16/20", "20/20"]
    assert lines[1].endswith("| time left 0:00:03")
    assert "left" not in lines[-1]


def test_lines_come_the_more_rarely_the_longer_a_run_takes(capsys):
    clock = Clock()
    with View(20_000, clock=clock) as view:
        for number in range(1, 3601):  # ten hours
            clock.now += 10
            view.show(number, {})
    assert 100 < len(capsys.readouterr().err.splitlines()) < 400


def test_a_line_inside_a_slow_round_counts_its_clients_also_in_the_first(capsys):
    clock = Clock()
    with View(20, clock=clock) as view:
        play(view, clock, 1, 40)
        play(view, clock, 2, 40)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "round 0/20 | clients 1/4"
    assert "round 1/20 | clients 3/4 | " in "\n".join(lines)


def test_a_job_of_a_sweep_names_itself_and_leaves_the_last_line_to_the_sweep(capsys):
    clock = Clock()
    with View(20, "job 3/12", clock) as view:
        for number in range(1, 21):
            play(view, clock, number, 0.7)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[4] for line in lines] == ["8/20", "16/20"]
    assert all(line.startswith("job 3/12 | round ") for line in lines)


def test_the_time_left_follows_the_mean_round_of_this_session_without_its_first():
    clock = Clock()
    view = View(100, clock=clock)
    clock.now += 500  # data are loaded
    view.begin(90)
    for number, took in ((91, 60), (92, 20), (93, 20)):
        assert "time left" not in view.shown() or number > 92
        clock.now += took
        view.show(number, {})
    assert view.shown()["time left"] == "0:02:20"
    assert view.shown()["speed"] == "20 s a round"
    clock.now += 10
    view.on_clients(1, 2)
    assert view.shown()["time left"] == "0:02:10"


def test_a_line_names_the_last_score_and_its_round():
    assert line(shown()) == "round 88/176 | epoch 4/8 | epsilon 5.472 of 8 | accuracy 92.8 % (round 80)"
    assert "accuracy not scored yet" in line(shown(scored=None, values={}))


def test_further_metrics_stand_in_it_as_far_as_they_fit():
    values = {"accuracy": 0.5, "f1": 0.25, "top5": None}
    assert line(shown(values=values)).endswith("(round 80) | f1 0.25 | top5 –")
    assert line(shown(values={"accuracy": 0.5, "f1": 0.25, "a" * 60: 0.5})).endswith("f1 0.25")


@pytest.mark.parametrize("around", [{}, {"job": "100000/100000", "clients": "1000000/1000000"}])
@pytest.mark.parametrize(
    "privacy", [{"epsilon_end": 19.99}, {}, {"reproducible": True}, {"has_noise": False}]
)
def test_the_longest_line_has_120_characters_and_keeps_round_privacy_and_accuracy(around, privacy):
    values = {"accuracy": 1.0} | {f"a_metric_of_a_rather_long_name_{n}": -1.234e-300 for n in range(9)}
    end = {"values": values, "scored": 10**7, "epsilon": 123456.7, "epsilon_end": 123456.7}
    said = line(
        around | shown(10**7, 10**7, 10**6, 10**6, **(end | privacy)) | {"time left": "99 days, 23:59:59"}
    )
    assert len(said) <= LONGEST_LINE == 120
    assert "round 10000000/10000000" in said
    assert "accuracy 100.0 %" in said
    assert ("NOT private" in said) is (
        privacy != {"epsilon_end": 19.99}
    )  # the largest has an epsilon above 20


def test_the_epsilon_of_a_line_is_never_below_the_one_spent():
    for epsilon in (0.001234, 1.0001, 5.4712, 9.996, 99.95, 12345.6, 8.0):
        said = shown(epsilon=epsilon)["epsilon"].split()[0]
        assert epsilon <= float(said) <= 1.0011 * epsilon


def counted(*overrides):
    """Return what a run tells of its clients, by round."""
    settings = runs.composed(*ONE, *overrides)
    experiment = build(settings)
    plan, told = experiment.plan, []
    shared = shared_tasks(settings, tasks_per_message(plan))
    state = first_state(plan, experiment.initial, run_secret(settings))
    strategy = FedMF(
        plan, experiment.optimizer, SimulatedPopulation(), state, replies=experiment.replies,
        tasks_per_message=shared,
    )  # fmt: skip
    with engine_workers(settings, experiment) as workers:
        run_engine(
            settings, experiment, strategy, on_clients=lambda *counts: told.append(counts), workers=workers
        )
    rounds: list[list[int]] = []
    for done, asked in told:
        assert asked == 10
        rounds += [[]] if done == 0 else []
        rounds[-1].append(done)
    return rounds


def test_in_one_process_every_client_is_counted_though_all_share_a_message():
    first, second = counted()
    assert sorted(set(first)) == sorted(set(second)) == list(range(11))


def test_worker_processes_are_counted_as_their_replies_come():
    for told in counted("engine.workers=2"):
        assert told == sorted(told)
        assert told[-1] == 10
        assert len(set(told)) > 2


@pytest.mark.ray
@pytest.mark.slow
def test_rays_processes_are_counted_as_their_replies_come():
    here = Path(__file__).resolve()
    code = "import json, test_progress as t; print(json.dumps(t.counted('engine=ray', 'engine.workers=2')))"
    folders = (here.parents[3], here.parents[2], here.parent)
    done = subprocess.run(  # in this process Ray would leave processes and warnings behind
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    rounds = json.loads(done.stdout.splitlines()[-1])
    assert len(rounds) == 2
    for told in rounds:
        assert told[-1] == 10
        assert len(set(told)) > 2


def test_a_client_that_fails_counts_like_any_other():
    for told in counted("faults.error=1"):
        assert told[-1] == 10

    def unreadable(client, context):
        raise ValueError("no such client")

    set_identity()
    played = []
    app = make_client_app(
        unreadable,
        lambda: None,
        small_plan(dimension=len(flat_parameters(Spoilt()))).client_plan,
        on_failure=lambda *_: None,
        on_done=lambda: played.append(1),
    )
    app(joint("3", "5"), Context(1, 1, {}, RecordDict(), {}))
    assert len(played) == 2


def test_a_round_that_is_asked_for_again_is_counted_anew():
    told = []
    count = ClientCount(lambda done, asked: told.append((done, asked)))
    count.asked(3)
    count.played()
    count.heard(1)
    count.asked(2)
    count.heard(1)
    count.heard(1)
    assert told == [(0, 3), (1, 3), (1, 3), (0, 2), (1, 2), (2, 2)]
