"""Few seeds for every cell, and more where two mechanisms of a row lie close together."""

from dataclasses import replace

import pytest

import tiny_cells
from experiments.pages.wording import Estimate
from experiments.reproduce.results import Results
from experiments.reproduce.study import Study, compute, is_above, is_paired_above, order
from experiments.reproduce.trials import Outcome
from experiments.reproduce.tuning import Seeds

MECHANISMS = ("far", "near", "nearer")
EPSILONS = (8.0, 2.0)
CHAINS = tuple(
    tuple(replace(cell, mechanism=name) for cell in tiny_cells.chain("optimal", epsilons=EPSILONS))
    for name in MECHANISMS
)
STUDY = Study(CHAINS, tuple(zip(*CHAINS, strict=True)), 0.3, Seeds((100,), (0, 1, 2), 0.1), (3, 4))
MEANS = {("far", 8.0): 0.9, ("near", 8.0): 0.80, ("nearer", 8.0): 0.815,
         ("far", 2.0): 0.7, ("near", 2.0): 0.60, ("nearer", 2.0): 0.50}  # fmt: skip


def made_up(trial):
    """The best rate is 0.3; runs spread by 0.01, the further seeds put near and nearer apart."""
    mean = MEANS[trial.cell.mechanism, trial.cell.epsilon] - abs(trial.learning_rate - 0.3)
    spread = (-0.01, 0.0, 0.01, 0.03, 0.03)[trial.seed] if trial.seed < 5 else 0.0
    return Outcome(round(mean + spread * (1 if trial.cell.mechanism != "near" else -1), 9), None, 1.0)


def seeds_by_cell(path):
    results = Results(path)
    return {(cell.mechanism, cell.epsilon): sorted(results.final(cell)[1]) for cell in STUDY.cells}


def test_two_that_lie_close_in_a_row_have_further_seeds_and_no_others(tmp_path):
    path = tmp_path / "a.jsonl"
    compute(path, STUDY, made_up, workers=1)
    few, many = [0, 1, 2], [0, 1, 2, 3, 4]
    assert seeds_by_cell(path) == {
        ("far", 8.0): few,
        ("near", 8.0): many,
        ("nearer", 8.0): many,
        ("far", 2.0): few,
        ("near", 2.0): few,
        ("nearer", 2.0): few,
    }
    lines = path.read_text().splitlines()
    assert lines == sorted(lines)


@pytest.mark.parametrize("after", [5, 14, 37, 38])
def test_a_study_that_was_cut_off_ends_in_the_same_file(tmp_path, after):
    """Also in the midst of the further seeds, which put the two far apart."""
    whole, cut, played = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl", []
    compute(whole, STUDY, made_up, workers=1)

    def until_cut(trial):
        if len(played) == after:
            raise KeyboardInterrupt
        played.append(trial.key)
        return made_up(trial)

    with pytest.raises(KeyboardInterrupt):
        compute(cut, STUDY, until_cut, workers=1)

    def go_on(trial):
        played.append(trial.key)
        return made_up(trial)

    compute(cut, STUDY, go_on, workers=1)
    assert cut.read_bytes() == whole.read_bytes()
    assert len(played) == len(set(played)) == len(whole.read_text().splitlines())


def test_a_study_without_further_seeds_ends_with_the_first_ones(tmp_path):
    path = tmp_path / "a.jsonl"
    compute(path, replace(STUDY, more=()), made_up, workers=1)
    assert set(map(tuple, seeds_by_cell(path).values())) == {(0, 1, 2)}


def test_means_are_told_apart_from_two_standard_errors_of_the_difference_on():
    low = Estimate(80.0, 0.3)
    assert is_above(Estimate(81.0, 0.4), low)
    assert not is_above(Estimate(80.99, 0.4), low)
    assert not is_above(low, Estimate(81.0, 0.4))
    assert not is_above(low, low)
    assert not is_above(Estimate(80.0, 0.0), Estimate(80.0, 0.0))


def test_runs_of_the_same_seed_tell_apart_what_their_means_do_not():
    low = {0: 0.80, 1: 0.90, 2: 0.70}
    high = {seed: accuracy + 0.01 + 0.001 * seed for seed, accuracy in low.items()}
    mixed = {0: 0.82, 1: 0.905, 2: 0.68}
    assert is_paired_above(high, low)
    assert not is_paired_above(low, high)
    assert not is_paired_above(mixed, low)
    assert not is_paired_above(low, low)
    assert not is_paired_above({0: 0.9}, {0: 0.1})  # of one pair there is no error
    assert is_paired_above(high, {**low, 3: 0.99})  # a seed that one of them lacks tells nothing
    assert is_paired_above({**high, 3: 0.0}, low)
    assert order({"low": low, "none": {}, "high": high, "mixed": mixed}) == "high ≈ mixed ≈ low"
    assert order({"low": low, "high": high}) == "high > low"
