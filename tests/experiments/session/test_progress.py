"""Progress: a bar on a terminal, lines where there is none; no line may claim more privacy than the run has."""

import io
import sys
from functools import partial

from rich.console import Console

from experiments.session.progress import View, standing
from plans import small_plan

PLAN = small_plan(clients=12, cohort_size=3, rounds_per_epoch=4, epochs=5)


class Clock:
    """Seconds that pass when they are told to."""

    now = 50.0

    def __call__(self):
        return self.now


def play(view, clock, rounds, seconds):
    for number in rounds:
        clock.now += seconds
        view.show(number, f"round {number}/20")


def said(number=9, spent=(5.4712, 7.9996), scored=8, values=None, *, reproducible=False, plan=PLAN):
    return standing(plan, number, spent, scored, values or {"accuracy": 0.928}, reproducible=reproducible)


def test_a_terminal_shows_a_bar_below_the_line_and_what_is_printed_stands_above_it(monkeypatch):
    out, clock = io.StringIO(), Clock()
    terminal = partial(Console, file=out, force_terminal=True, width=100, _environ={})
    monkeypatch.setattr("experiments.session.progress.Console", lambda stderr: terminal())
    view = View(20, clock=clock)
    with view.display:
        play(view, clock, [1], 8)
        print("round 2: 3 of 3 clients failed", file=sys.stderr)
        play(view, clock, [2], 8)
    _, _, below = out.getvalue().partition("3 of 3 clients failed")
    assert "round 2/20" in below
    assert "0:02:24" in below


def test_without_a_terminal_lines_keep_a_distance_and_the_last_comes_but_in_a_job_of_a_sweep(capsys):
    for job, shown in (((), ["8/20", "16/20", "20/20"]), (("job 3/12",), ["8/20", "16/20"])):
        clock = Clock()
        play(View(20, *job, clock=clock), clock, range(1, 21), 0.7)
        lines = capsys.readouterr().err.splitlines()
        assert [line.partition("round ")[2].split()[0] for line in lines] == shown
        assert "time left 0:00:0" in lines[1]
        assert all(line.startswith("job 3/12 | round " if job else "round ") for line in lines)
    assert "left" not in lines[-1] or job


def test_the_time_left_follows_the_rounds_of_this_session(capsys):
    clock = Clock()
    view = View(100, clock=clock)
    clock.now += 500  # data are loaded
    view.begin(90)
    play(view, clock, [91, 92, 93], 20)
    assert "time left 0:02:20" in capsys.readouterr().err.splitlines()[-1]


def test_a_line_names_the_last_score_and_its_round_and_further_metrics():
    assert said() == "round 9/20 | epoch 3/5 | epsilon 5.472 of 8 | accuracy 92.8 % (round 8)"
    assert "accuracy" not in said(scored=None, values={"f1": None})
    values = {"accuracy": 0.5, "f1": 0.25, "top5": None}
    assert said(values=values).endswith("(round 8) | f1 0.25 | top5 –")


def test_a_run_that_is_not_private_is_called_so():
    assert "NOT private" not in said(spent=(5.0, 19.99))
    for run in ({"spent": (5.0, 1e6)}, {"reproducible": True}, {"plan": small_plan(noise_multiplier=0)}):
        assert "NOT private" in said(**run)
