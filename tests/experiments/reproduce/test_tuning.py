"""Each rate is searched until it is bracketed, and each search starts where its neighbour ended."""

import pytest

from experiments.reproduce.results import Outcome
from experiments.reproduce.study import Cell, Chain, Study
from experiments.reproduce.tuning import best_place, rate_at, rates

STUDY = Study("whole_run", "small")
CELLS = tuple(
    Cell("digits", "optimal", 0.5, epsilon, (f"privacy.epsilon={epsilon}",)) for epsilon in (8.0, 4.0)
)


@pytest.mark.parametrize("best", [-4, -1, 0, 1, 5])
def test_the_search_ends_where_both_neighbours_are_no_better(best):
    tried = []

    def score(place):
        tried.append(place)
        return 0.9 - 0.01 * abs(place - best)

    assert best_place(score, 0) == best
    assert {best - 1, best, best + 1} <= set(tried)
    assert len(tried) == len(set(tried)) == max(3, abs(best) + 3)  # no place twice, none beyond


def test_the_search_ends_on_a_plateau_and_without_a_score():
    assert best_place(lambda place: 0.1, 2) == 2
    assert best_place(lambda place: 0.1 if place < 3 else None, 2) is None


def test_each_search_starts_where_the_neighbour_ended_and_the_mean_of_the_seeds_decides():
    asked = []

    def play(trials):
        """Accuracies that are best at the rate 0.3 times epsilon; one of the two seeds misleads."""
        asked.append(trials)
        found = []
        for trial in trials:
            distance = abs(trial.rate / (0.3 * trial.cell.epsilon) - 1)
            tilt = 0.01 * trial.rate * (1 if trial.seed == 100 else -1)
            found.append(Outcome(0.9 - distance / 100 + tilt, None, 0.0))
        return found

    assert dict(rates(Chain(CELLS, 0.3, 2), STUDY, play)) == dict(
        zip(CELLS, (rate_at(0.3, 5), rate_at(0.3, 3)), strict=True)
    )
    assert {(trial.seed, trial.held_out) for trials in asked for trial in trials} == {
        (100, 0.15),
        (101, 0.15),
    }
    second = [trials[0].rate for trials in asked if trials[0].cell == CELLS[1]]
    assert second[:3] == [rate_at(0.3, place) for place in (4, 5, 6)]


def test_where_outcomes_are_missing_the_rates_so_far_are_known():
    def play(trials):
        return None if trials[0].cell == CELLS[1] else [Outcome(0.5, None, 0.0)] * len(trials)

    assert dict(rates(Chain(CELLS, 0.3, 1), STUDY, play)) == {CELLS[0]: 0.3}
