"""Long computations: each rate is searched until it is bracketed, no trial is computed twice, a kill costs nothing."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tiny_cells
from experiments.reproduce.results import Results
from experiments.reproduce.trials import Outcome, Trial
from experiments.reproduce.tuning import Seeds, best_place, rate_at, tuned_rates, tuned_runs
from experiments.reproduce.work import Progress, _pool
from fedmf.errors import RunDirectoryError

CELL = tiny_cells.CHAINS[0][0]
ROOT = Path(__file__).resolve().parents[3]


def made_up(trial):
    """An outcome that hangs on everything in the trial, best at the rate 0.3 times epsilon."""
    distance = abs(trial.learning_rate / (0.3 * trial.cell.epsilon) - 1)
    return Outcome(round(0.9 - distance / 100 + trial.seed * 1e-6, 9), len(trial.key) + 0.5, 0.25)


def searched(accuracy, place):
    """Search with made-up accuracies by place; return where it ended and the places tried, in order."""
    search = best_place(lambda near: [Trial(CELL, 1.0, near + 1000), Trial(CELL, 2.0, near + 1000)], place)
    tried, outcomes = [], None
    try:
        while True:
            trials = search.send(outcomes)
            tried += [trial.seed - 1000 for trial in trials]
            assert len(tried) < 100
            # one of the two seeds misleads: only their mean tells the best place
            noise = [0.3 if trial.learning_rate == 1.0 else -0.3 for trial in trials]
            tilt = [0.1 * n * (trial.seed - 1000) for n, trial in zip(noise, trials, strict=True)]
            outcomes = [
                Outcome(accuracy(trial.seed - 1000) + t, None, 0.0)
                for trial, t in zip(trials, tilt, strict=True)
            ]
    except StopIteration as end:
        return end.value, tried[::2]


@pytest.mark.parametrize("best", [-4, -1, 0, 1, 5])
def test_the_search_ends_where_both_neighbours_are_no_better(best):
    place, tried = searched(lambda near: 0.9 - 0.01 * abs(near - best), 0)
    assert place == best
    assert {best - 1, best, best + 1} <= set(tried)
    assert len(tried) == len(set(tried)) == max(3, abs(best) + 3)  # no place twice, none beyond


def test_the_search_ends_on_a_plateau():
    assert searched(lambda near: 0.1, 2) == (2, [1, 2, 3])


def advanced(chain, outcomes):
    """Return what a chain asks for next, None at its end."""
    try:
        return chain.send(outcomes)
    except StopIteration:
        return None


def test_each_search_begins_where_the_neighbour_ended_and_runs_use_what_it_found():
    cells = tiny_cells.chain("optimal", epsilons=(8.0, 4.0))
    asked, outcomes = [], None
    chain = tuned_runs(cells, 0.3, Seeds((100, 101), (0, 1, 2), 0.1))
    while (batch := advanced(chain, outcomes)) is not None:
        asked.append(batch)
        outcomes = [made_up(trial) for trial in batch]
    final = [batch for batch in asked if not batch[0].held_out]
    assert [batch[0].cell for batch in final] == cells
    assert [{trial.learning_rate for trial in batch} for batch in final] == [
        {rate_at(0.3, 5)},
        {rate_at(0.3, 3)},
    ]
    assert [[trial.seed for trial in batch] for batch in final] == [[0, 1, 2]] * 2
    second = asked[asked.index(final[0]) + 1]
    assert {trial.learning_rate for trial in second} == {rate_at(0.3, place) for place in (4, 5, 6)}
    assert {(trial.seed, trial.held_out) for trial in second} == {(100, 0.1), (101, 0.1)}


def stripped(path):
    """Return the file's lines less the seconds that they took."""
    return [
        json.dumps({key: value for key, value in json.loads(line).items() if key not in ("seconds", "wall")})
        for line in path.read_text().splitlines()
    ]


@pytest.mark.parametrize("after", [0, 1, 7, 30])
def test_a_computation_cut_off_goes_on_and_computes_nothing_twice(tmp_path, after):
    whole = tiny_cells.work(tmp_path / "whole.jsonl", player=made_up)
    played = []

    def until_cut(trial):
        if len(played) == after:
            raise KeyboardInterrupt
        played.append(trial.key)
        return made_up(trial)

    path = tmp_path / "cut.jsonl"
    with pytest.raises(KeyboardInterrupt):
        tiny_cells.work(path, player=until_cut)
    with path.open("a") as file:
        file.write('{"task": "torn')

    def go_on(trial):
        played.append(trial.key)
        return made_up(trial)

    tiny_cells.work(path, player=go_on)
    assert path.read_bytes() == whole.read_bytes()
    assert len(played) == len(set(played)) == len(stripped(whole))


def test_an_outcome_takes_the_place_of_a_torn_line(tmp_path):
    path = tmp_path / "a.jsonl"
    for seed in range(2):
        with path.open("a") as file:
            file.write('{"task": "torn')
        Results(path).add(Trial(CELL, 0.3, seed), Outcome(0.5, 1.0, 2.0))
    assert Results(path).final(CELL)[1] == {0: 0.5, 1: 0.5}
    assert "torn" not in path.read_text()


LINE = {**json.loads(Trial(CELL, 0.3, 0).key), "accuracy": 0.5, "loss": 1.0, "seconds": 2.0}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"accuracy": "abc"}, "its accuracy is 'abc', which is not a number"),
        ({"accuracy": None}, "its accuracy is None"),
        ({"accuracy": True}, "its accuracy is True"),
        ({"accuracy": float("nan")}, "its accuracy is nan, which is not a number"),
        ({"accuracy": 86.5}, "its accuracy is 86.5, which is not between 0 and 1"),
        ({"accuracy": -0.1}, "its accuracy is -0.1, which is not between 0 and 1"),
        ({"loss": "1.0"}, "its loss is '1.0'"),
        ({"loss": float("inf")}, "its loss is inf, which is not a number"),
        ({"epsilon": "8"}, "its epsilon is '8', which is not a number"),
        ({"epsilon": 10**400}, "its epsilon is 1000"),
        ({"keep": [0.1]}, "its keep is [0.1], which is not a number"),
        ({"task": None}, "its task is None, which is not a text"),
        ({"settings": 12345678}, "its settings is 12345678, which is not a text"),
        ({"seconds": "x"}, "its seconds is 'x'"),
        ({"wall": "x"}, "its wall is 'x'"),
        ({"seed": 0.5}, "its seed is 0.5, which is not an integer"),
        ({"rate": "0.3"}, "its rate is '0.3'"),
        ({"held_out": "yes"}, "its held_out is 'yes'"),
        ({"mechanism": 7}, "its mechanism is 7, which is not a text"),
        ({"fedmf": "0.1.0", "code": 5}, "its code is 5"),
        ({"fedmf": 0.1, "code": "0123456789abcdef"}, "its fedmf is 0.1"),
        ({"note": "mine"}, "it has note besides"),
    ],
)
def test_a_line_with_a_value_of_another_type_is_refused_by_its_number(tmp_path, changed, said):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (LINE, {**LINE, "seed": 1, **changed})))
    with pytest.raises(RunDirectoryError, match=re.escape(f"line 2 of {path} is no result ({said}")):
        Results(path)


@pytest.mark.parametrize("field", sorted(LINE))
def test_a_line_that_lacks_a_field_is_refused(tmp_path, field):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({name: value for name, value in LINE.items() if name != field}) + "\n")
    with pytest.raises(RunDirectoryError, match=f"it lacks {field}"):
        Results(path)


def test_another_file_is_not_taken_for_a_torn_line_and_written_over(tmp_path):
    path = tmp_path / "a.jsonl"
    for before in ("", json.dumps(LINE) + "\n"):
        for note in ("a note of mine", '{"task": "buy milk"}'):
            path.write_text(before + note)
            number = len(path.read_text().splitlines())
            with pytest.raises(
                RunDirectoryError, match=f"line {number} of .* is no result, nor the beginning of one"
            ):
                Results(path)
            assert path.read_text() == before + note
    for end in range(len(json.dumps(LINE)) + 1):
        path.write_text(json.dumps(LINE)[:end])
        assert len(Results(path)) == 0


def test_whole_numbers_are_the_same_run_as_with_a_point(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({**LINE, "epsilon": int(LINE["epsilon"]), "held_out": 0}) + "\n")
    assert LINE["epsilon"] == int(LINE["epsilon"])
    assert Results(path).find(Trial(CELL, 0.3, 0)) == Outcome(0.5, 1.0, 2.0)


def test_a_refused_file_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("a note of mine")
    with pytest.raises(RunDirectoryError):
        tiny_cells.work(path, player=made_up)
    assert list(tmp_path.iterdir()) == [path]


def test_the_sorted_file_does_not_tell_in_which_order_trials_ended(tmp_path):
    texts = set()
    for name, seeds in (("a", (0, 1, 2)), ("b", (2, 0, 1))):
        results = Results(tmp_path / name)
        for seed in seeds:
            results.add(Trial(CELL, 0.3, seed), Outcome(0.5, None, 2.0))
        results.sort()
        texts.add((tmp_path / name).read_bytes())
    assert len(texts) == 1


def test_outcomes_go_on_behind_a_sorted_file(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(
        json.dumps(
            {**json.loads(Trial(CELL, 0.3, 0).key), "accuracy": 0.5, "loss": 1e0, "seconds": 2}, indent=None
        ).replace(": ", ":   ")
        + "\n"
    )
    results = Results(path, mix_code=True)
    results.sort()  # in fewer bytes than before
    results.add(Trial(CELL, 0.3, 1), Outcome(0.5, 1.0, 2.0))
    assert Results(path).final(CELL)[1] == {0: 0.5, 1: 0.5}
    assert b"\0" not in path.read_bytes()


def test_a_finished_computation_is_not_begun_again(tmp_path):
    path = tiny_cells.work(tmp_path / "a.jsonl", player=made_up)
    before = path.read_bytes()
    tiny_cells.work(path, player=None)
    assert path.read_bytes() == before


def test_results_of_other_settings_under_the_same_names_are_not_taken(tmp_path):
    results = Results(tmp_path / "a.jsonl")
    results.add(Trial(CELL, 0.3, 0), Outcome(0.5, 1.0, 2.0))
    other = tiny_cells.Cell(CELL.task, CELL.mechanism, CELL.keep_probability, CELL.epsilon, ("seed=1",))
    again = Results(tmp_path / "a.jsonl")
    assert again.find(Trial(CELL, 0.3, 0)) == Outcome(0.5, 1.0, 2.0)
    assert again.find(Trial(other, 0.3, 0)) is None
    assert again.final(CELL) == (0.3, {0: 0.5})
    assert again.final(other)[1] == {}


def test_trials_that_tune_are_not_in_the_table(tmp_path):
    results = Results(tmp_path / "a.jsonl")
    results.add(Trial(CELL, 0.3, 0, held_out=0.1), Outcome(0.9, 1.0, 2.0))
    assert results.final(CELL)[1] == {}
    results.add(Trial(CELL, 0.3, 0), Outcome(0.5, 1.0, 2.0))
    results.add(Trial(CELL, 0.2, 0), Outcome(0.6, 1.0, 2.0))
    results.add(Trial(CELL, 0.2, 1), Outcome(0.7, 1.0, 2.0))
    assert results.final(CELL) == (0.2, {0: 0.6, 1: 0.7})


def test_the_table_shows_the_runs_at_the_rate_that_tuning_chose(tmp_path):
    """Tuned once with two seeds and then with three: the runs of the first choice are left over, and are more."""
    results, cells = Results(tmp_path / "a.jsonl"), [CELL]
    few, more = Seeds((100, 101), (0, 1, 2), 0.1), Seeds((100, 101, 102), (0, 1, 2), 0.1)
    accuracy = {0.2: (0.5, 0.5, 0.5), 0.3: (0.6, 0.6, 0.3), 0.45: (0.55, 0.55, 0.9), 0.675: (0.4, 0.4, 0.4)}
    for rate, scores in accuracy.items():
        for seed, score in zip((100, 101, 102), scores, strict=True):
            results.add(Trial(CELL, rate, seed, 0.1), Outcome(score, None, 1.0))
    for rate, runs in ((0.3, 3), (0.45, 2)):
        for seed in range(runs):
            results.add(Trial(CELL, rate, seed), Outcome(rate, None, 1.0))
    assert tuned_rates(tuned_runs(cells, 0.3, few), results) == {CELL: 0.3}
    chosen = tuned_rates(tuned_runs(cells, 0.3, more), results)
    assert chosen == {CELL: 0.45}
    assert results.final(CELL)[0] == 0.3
    results.prefer(chosen)
    assert results.final(CELL) == (0.45, {0: 0.45, 1: 0.45})
    unfinished = Seeds((100, 101, 102, 103), (0,), 0.1)
    assert tuned_rates(tuned_runs(cells, 0.3, unfinished), results) == {}


@pytest.mark.parametrize(
    "line", ["nonsense", "[1]", "5", "[" * 100_000, '{"accuracy": 1, "loss": 1, "seconds": 1}', '{"rate": 1}']
)
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path, line):
    path = tmp_path / "a.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(RunDirectoryError, match="line 1"):
        Results(path)
    assert path.read_text() == line + "\n"


def test_progress_tells_the_time_left_from_what_this_call_computed():
    progress = Progress(10)
    for seed in range(4):
        progress.note(Trial(CELL, 0.3, seed), was_computed=seed >= 2)
    assert progress.line(Trial(CELL, 0.3, 0), 600).startswith(
        "4/10 runs | 0 trials for tuning | time left 30 min"
    )
    assert "time left unknown" in Progress(10).line(Trial(CELL, 0.3, 0), 600)


@pytest.mark.slow
def test_a_killed_computation_goes_on_to_the_same_file_and_leaves_no_process(tmp_path):
    """Real trials in two worker processes, killed without warning; the file is that of one process undisturbed."""
    path = tmp_path / "killed.jsonl"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    killed = subprocess.Popen([sys.executable, "-m", "tiny_cells", str(path)], env=environment, cwd=tmp_path)
    deadline = time.monotonic() + 120
    while not path.exists() or len(path.read_text().splitlines()) < 10:
        assert time.monotonic() < deadline
        assert killed.poll() is None
        time.sleep(0.02)
    workers = children(killed.pid)
    assert len(workers) >= 2
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    kept = path.read_text().rpartition("\n")[0].splitlines()
    while any(map(is_alive, workers)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    tiny_cells.work(path)
    assert set(kept) <= set(path.read_text().splitlines())  # with their seconds: not computed again
    whole = tiny_cells.work(tmp_path / "whole.jsonl")
    assert len(kept) < len(stripped(whole))
    assert stripped(path) == stripped(whole)


def children(process):
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def is_alive(process):
    stat = Path(f"/proc/{process}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_worker_leaves_what_a_terminal_sends_to_all_to_the_command():
    with _pool(2) as pool:
        for number in (signal.SIGINT, signal.SIGHUP):
            assert pool.submit(signal.getsignal, number).result() == signal.SIG_IGN
