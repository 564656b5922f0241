"""The time left, by a made-up clock: exact for equal rounds."""

import pytest

from experiments.session.progress import TimeLeft


class Clock:
    """Seconds that pass when they are told to."""

    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def play(left, clock, number, took):
    clock.now += took
    left.released(number)


def test_in_a_run_of_equal_rounds_it_is_what_is_left(clock):
    left = TimeLeft(50, clock)
    for number in range(1, 5):
        play(left, clock, number, 10)
    assert left.text() == "7 min 40 s left"
    left.clients(1, 2)
    assert left.text() == "7 min 35 s left"


def test_the_first_round_of_a_session_counts_only_until_another_is_known(clock):
    left = TimeLeft(11, clock)
    play(left, clock, 1, 60)
    assert left.round_seconds == 60
    for number in (2, 3, 4):
        play(left, clock, number, 1)
    assert left.round_seconds == 1


def test_before_three_rounds_nothing_is_shown_unless_they_take_long(clock):
    left = TimeLeft(100, clock)
    play(left, clock, 1, 1)
    play(left, clock, 2, 1)
    assert left.text() == ""
    left.begin()
    play(left, clock, 3, 40)
    assert left.text() != ""


def test_what_an_earlier_session_released_took_no_time_in_this_one(clock):
    left = TimeLeft(100, clock)
    clock.now += 500  # data are loaded
    left.begin()
    for number in (91, 92, 93, 94):
        play(left, clock, number, 3)
    assert left.text() == "18 s left"
