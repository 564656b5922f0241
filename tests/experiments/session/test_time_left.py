"""The time left, by a made-up clock: exact for equal rounds, and never a larger number than before."""

import re
from itertools import pairwise

import numpy as np
import pytest

from experiments.session.schedule import Schedule
from experiments.session.time_left import TimeLeft

UNITS = {"d": 86400, "h": 3600, "min": 60, "s": 1}


class Clock:
    """Seconds that pass when they are told to."""

    now = 1000.0

    def __call__(self):
        return self.now

    def wait(self, seconds):
        self.now += seconds


@pytest.fixture
def clock():
    return Clock()


def seconds(text):
    """Return the number of seconds that a text of the time left says."""
    return sum(int(count) * UNITS[unit] for count, unit in re.findall(r"(\d+) (d|h|min|s)\b", text))


def play(left, clock, number, took, *, clients=4):
    """Play round `number` in `took` seconds; yield after each client, and after the round."""
    left.clients(0, clients)
    for done in range(1, clients + 1):
        clock.wait(took / clients)
        left.clients(done, clients)
        yield
    left.released(number)
    yield


def test_in_a_run_of_equal_rounds_the_estimate_is_what_is_left_and_never_grows(clock):
    left = TimeLeft(50, lambda number: 0, clock)
    end, estimates = clock.now + 50 * 10, []
    for number in range(1, 51):
        for _ in play(left, clock, number, 10):
            estimate = left.estimate()
            assert estimate is None or estimate == pytest.approx(end - clock.now)
            estimates += [] if estimate is None else [estimate]
    assert len(estimates) == 1 + 49 * 5
    assert all(later <= earlier for earlier, later in pairwise(estimates))


def test_the_first_round_of_a_session_counts_only_until_another_is_known(clock):
    left = TimeLeft(11, lambda number: 0, clock)
    list(play(left, clock, 1, 60))
    assert left.estimate() == 600
    list(play(left, clock, 2, 1))
    assert left.estimate() == 9


@pytest.mark.parametrize("evaluations", [4, 40])
def test_scoring_is_counted_for_the_examples_that_are_left_and_not_as_a_slow_round(clock, evaluations):
    schedule = Schedule(40, evaluations, None, 1000, 100)  # 100 examples but for the last round
    left = TimeLeft(40, schedule.examples_after, clock)
    end = clock.now + 40 * 2 + (100 * (evaluations - 1) + 1000) * 0.05
    for number in range(1, 41):
        clock.wait(2)
        if schedule.is_due(number):
            examples = 1000 if number == 40 else 100
            clock.wait(0.05 * examples)
            left.scored(0.05 * examples, examples)
        left.released(number)
        if number >= 10:
            assert left.estimate() == pytest.approx(end - clock.now)


def test_nothing_is_said_before_the_first_score_is_timed_unless_that_takes_long(clock):
    left = TimeLeft(100, Schedule(100, 2, None, 10, 10).examples_after, clock)
    for number in range(1, 30):
        list(play(left, clock, number, 1))
        assert left.text() == ""
    list(play(left, clock, 30, 1))
    assert left.text() == "1 min 10 s left"


def test_what_an_earlier_session_released_took_no_time_in_this_one(clock):
    left = TimeLeft(100, lambda number: 0, clock)
    clock.wait(500)  # data are loaded
    left.begin()
    for number in (91, 92):
        list(play(left, clock, number, 3))
        assert left.estimate() == (100 - number) * 3


def test_one_slow_round_moves_nothing(clock):
    left = TimeLeft(100, lambda number: 0, clock)
    for number in range(1, 41):
        list(play(left, clock, number, 500 if number == 35 else 1))
    assert left.estimate() == 60


@pytest.mark.parametrize("seed", range(5))
def test_in_a_noisy_run_the_number_shown_never_grows_though_the_estimate_does(clock, seed):
    took, shown, estimates = np.random.default_rng(seed).gamma(2, 2, size=200), [], []
    left = TimeLeft(200, lambda number: 0, clock)
    for number in range(1, 201):
        for _ in play(left, clock, number, float(took[number - 1])):
            if text := left.text():
                shown.append(seconds(text))
                estimates.append(left.estimate())
    assert shown == sorted(shown, reverse=True)
    assert estimates != sorted(estimates, reverse=True)
    assert shown[-1] == 0


def test_a_round_that_is_asked_for_again_lets_no_shown_number_grow(clock):
    left = TimeLeft(10, lambda number: 0, clock)
    for number in (1, 2, 3):
        list(play(left, clock, number, 60))
    left.clients(4, 4)
    before = seconds(left.text())
    left.clients(0, 4)
    assert seconds(left.text()) == before


def test_a_run_that_has_become_slow_says_that_more_is_left_than_the_number(clock):
    left = TimeLeft(100, lambda number: 0, clock)
    for number in range(1, 41):
        list(play(left, clock, number, 1))
    assert left.text() == "1 min 0 s left"
    for number in range(41, 71):
        list(play(left, clock, number, 10))
        assert seconds(left.text()) <= 60
    assert left.text().startswith("over ")
    assert left.estimate() == 300


def test_after_a_few_quick_rounds_nothing_is_shown_and_then_more_than_they_promise(clock):
    left, shown = TimeLeft(100, lambda number: 0, clock), []
    for number in range(1, 101):
        list(play(left, clock, number, 1 if number < 6 else 1.4))
        shown.append(left.text())
    assert shown[:3] == ["", "", ""]
    assert seconds(shown[3]) == 130  # 96 rounds of 1 s, and 0.35 of that for what three rounds cannot know
    assert not any(text.startswith("over") for text in shown[15:])
    assert seconds(shown[-1]) == 0
