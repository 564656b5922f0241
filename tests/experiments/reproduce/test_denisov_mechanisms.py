"""The one-pass comparison of mechanisms: what is compared, its exact errors, and its page from real runs."""

import json
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from experiments.cli import command
from experiments.reproduce import (
    Means,
    denisov_mechanisms,
    denisov_page,
    denisov_paper,
    denisov_plot,
    sgmf_page,
    sgmf_paper,
)
from experiments.reproduce.__main__ import ReproduceSettings, reproduce
from experiments.reproduce.denisov_training import (
    COMPARED,
    COOLED,
    FITTED,
    FULL,
    INDEPENDENT,
    MECHANISMS,
    MOMENTUM,
    ONLINE,
    PREFIX,
    SIZES,
    cell,
    factorization,
    study,
)
from experiments.reproduce.looks import LOOKS
from experiments.reproduce.results import Results
from experiments.reproduce.trials import Outcome, Trial
from experiments.reproduce.whole_run import COMMON, Task
from experiments.run_files.same_settings import fixed
from experiments.settings.compose import compose
from experiments.settings.experiment import build
from experiments.settings.factorization import factorize
from experiments.settings.mechanism import WorkloadName
from experiments.settings.schema import Settings
from fedmf.mechanisms.schedules import rates

pytestmark = pytest.mark.long

NAME = "denisov_mechanisms"
TINY = replace(
    SIZES["small"],
    task=Task("digits", "A few digits", (*COMMON, "dataset=digits", "model=logistic"), 0.3, 1),
    dimension=650, cohort=8, rounds=8, epsilons=(8.0,), seeds=2,
)  # fmt: skip
CLIENTS = {"small": 3782, "laptop": 7736}


def settings_of(cell):
    return compose("config", cell.overrides, Settings)


def called(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        command.run(reproduce, "reproduce", ReproduceSettings, "doc", arguments)
    said = capsys.readouterr()
    return caught.value.code, said.out, said.err


def fill(directory, size, schedule, mechanism, accuracies, epsilon=8.0, rate=0.05):
    """Put runs with these accuracies, by seed, into the file of results."""
    results = Results(directory / f"{NAME}.jsonl")
    for seed, accuracy in accuracies.items():
        results.add(
            Trial(cell(size, schedule, mechanism, epsilon), rate, seed), Outcome(accuracy, None, 60.0)
        )
    return Results(directory / f"{NAME}.jsonl")


def dense(schedule, rounds):
    """Return the map from releases to models, column by column from the server's own recursion."""
    shares = rates(schedule, rounds)
    A = np.zeros((rounds, rounds))
    for column in range(rounds):
        velocity = model = 0.0
        for row in range(rounds):
            velocity = MOMENTUM * velocity + (row == column)
            model += shares[row] * velocity
            A[row, column] = model
    return A


def test_all_that_the_issue_asks_for_is_compared():
    assert set(COMPARED["cooldown"]) == {INDEPENDENT, ONLINE, FULL, PREFIX, FITTED, COOLED}
    assert set(COMPARED["constant"]) == {INDEPENDENT, ONLINE, FULL, PREFIX, FITTED}
    for size in SIZES.values():
        work = study(size)
        assert len(set(work.cells)) == 11 * len(size.epsilons)
        assert {one for row in work.rows for one in row} == set(work.cells)
        assert len(size.epsilons) >= 4
        assert len(work.seeds.final) == size.seeds >= 10
        assert not {*work.seeds.tuning} & {*work.seeds.final}
        for one in work.cells:
            assert {"population.epochs=1", "compression.keep_probability=1"} <= set(one.overrides)
        for one in (work.rows[0][0], work.rows[-1][-1]):
            found = settings_of(one)
            assert (found.population.epochs, one.keep_probability) == (1, 1.0)
            assert found.compression.keep_probability == 1.0
            assert found.optimizer.momentum == MOMENTUM
            assert found.optimizer.schedule == ("cooldown" if "cooldown" in one.task else "constant")


def test_a_row_differs_in_the_noise_and_the_schedules_in_the_rate_only():
    settings = {
        (schedule, name): settings_of(cell(SIZES["small"], schedule, name, 2.0))
        for schedule, names in COMPARED.items()
        for name in names
    }
    usual = fixed(settings["constant", INDEPENDENT])
    for (schedule, name), one in settings.items():
        own = fixed(one)
        differ = {key for key in own if own[key] != usual[key]} - {"mechanism.name", "workload"}
        assert differ == ({"optimizer.schedule"} if schedule == "cooldown" else set())
        assert (one.mechanism.name, one.workload) == MECHANISMS[name]
        assert one.privacy.epsilon == 2.0
    kinds = {name: (family, workload.value) for name, (family, workload) in MECHANISMS.items()}
    assert kinds == {
        INDEPENDENT: ("independent", "prefix_sum"),
        ONLINE: ("honaker_online", "prefix_sum"),
        FULL: ("honaker_full", "prefix_sum"),
        PREFIX: ("optimal", "prefix_sum"),
        FITTED: ("optimal", "momentum"),
        COOLED: ("optimal", "run"),
    }


def test_in_one_pass_the_whole_runs_mechanism_is_that_of_momentum_unless_the_rate_cools():
    whole = factorize("optimal", WorkloadName.run, 64, 1, beta=MOMENTUM, schedule="constant")
    size = replace(SIZES["small"], rounds=64)
    assert whole.fingerprint == factorization(size, "constant", FITTED).fingerprint
    assert factorization(size, "cooldown", COOLED).fingerprint != whole.fingerprint


def test_honakers_estimators_do_not_hang_on_what_they_are_fitted_to():
    size = replace(SIZES["small"], rounds=64)
    for name in (ONLINE, FULL):
        family, _ = MECHANISMS[name]
        found = factorization(size, "cooldown", name).per_round_error
        for workload in WorkloadName:
            other = factorize(family, workload, 64, 1, beta=MOMENTUM, schedule="cooldown")
            np.testing.assert_allclose(other.per_round_error, found, rtol=1e-6)


@pytest.mark.parametrize("schedule", COMPARED)
def test_the_error_in_the_model_is_that_of_the_streams_noise_under_the_servers_recursion(schedule):
    size = replace(SIZES["small"], rounds=16)
    A = dense(schedule, 16)
    for name in COMPARED[schedule]:
        run = factorization(size, schedule, name)
        noising = run.epochs[0].stream.materialize_noising()
        expected = run.sensitivity * np.linalg.norm(A @ noising, axis=1)
        np.testing.assert_allclose(run.per_round_error, expected, rtol=1e-5)
    lines = {row[0]: row for row in denisov_page.error_table(size).rows}
    place = 1 if schedule == "constant" else 5
    best = min(factorization(size, schedule, name).rms_error for name in COMPARED[schedule])
    rms = np.sqrt(np.mean(np.sum(A**2, axis=1)))
    assert lines[INDEPENDENT][place] == f"{rms:.2f}"
    assert lines[INDEPENDENT][place + 1] == f"{rms / best:.3f}"
    assert lines[INDEPENDENT][place + 2] == f"{np.linalg.norm(A[-1]):.2f}"
    assert lines[COOLED][1:5] == (None,) * 4


@pytest.mark.parametrize("name", CLIENTS)
def test_the_model_and_the_clients_are_those_that_a_size_says_also_while_rates_are_tuned(name):
    size = SIZES[name]
    blank = sgmf_paper.blank(size)
    left = [blank.clients[0]] * (CLIENTS[name] - int(size.held_out * CLIENTS[name]))
    for epsilon in (8.0, 1.0):
        one = settings_of(cell(size, "constant", INDEPENDENT, epsilon))
        plan = build(one, replace(blank, classes=10, clients=left)).plan
        assert plan.dimension == size.dimension
        assert (plan.participation.rounds, plan.participation.cohort_size) == (size.rounds, size.cohort)
        assert plan.noise_multiplier == pytest.approx(denisov_page.noise_multiplier(size, epsilon), rel=1e-6)
        assert one.dataset.examples_per_client == {"small": 17, "laptop": 8}[name]
    assert f"{CLIENTS[name]:,} clients" in size.task.words
    assert f"{size.dimension:,} parameters" in size.task.words


def test_real_runs_become_a_page_a_plot_and_nothing_is_computed_twice(tmp_path, monkeypatch):
    monkeypatch.setitem(SIZES, "small", TINY)
    for schedule, names in (("constant", (FITTED,)), ("cooldown", (FITTED, COOLED))):  # for time
        monkeypatch.setitem(COMPARED, schedule, names)
    words = ("Above.", "They differ.")
    found = denisov_page.make(tmp_path, Means(), NAME, "small", words)
    text = (tmp_path / f"{NAME}.md").read_text()
    assert (tmp_path / f"{NAME}.png").read_bytes().startswith(b"\x89PNG")
    assert found.figures == (tmp_path / f"{NAME}.png",)
    assert f"({NAME}.png)" in text
    assert [(row[1], row[6]) for row in found.rows] == [
        (name, 2) for names in COMPARED.values() for name in names
    ]
    constant, cooldown = (line for line in text.splitlines() if line.startswith("| 1 | 8 |") and "±" in line)
    for task, mechanism, _, _, mean, *_ in found.rows:
        schedule, line = ("cooldown", cooldown) if "cooldown" in task else ("constant", constant)
        assert f"{mean:.1f} ±" in line.split("|")[3 + COMPARED[schedule].index(mechanism)]
        assert mean > 10  # percent
    assert "Unfinished" not in text
    assert "**What we find.** They differ." in text
    lines = (tmp_path / f"{NAME}.jsonl").read_bytes()
    monkeypatch.setattr(sgmf_page, "play", lambda trial, data: pytest.fail("it is there"))
    denisov_page.make(tmp_path, Means(), NAME, "small", words)
    assert (tmp_path / f"{NAME}.md").read_text() == text
    assert (tmp_path / f"{NAME}.jsonl").read_bytes() == lines


def test_differences_are_those_of_the_same_seeds(tmp_path):
    size = SIZES["small"]
    fill(tmp_path, size, "constant", PREFIX, {0: 0.80, 1: 0.84, 2: 0.10})
    fill(tmp_path, size, "constant", FITTED, {0: 0.82, 1: 0.88})
    fill(tmp_path, size, "cooldown", FITTED, {0: 0.85, 1: 0.91})
    results = fill(tmp_path, size, "cooldown", COOLED, {0: 0.84, 1: 0.88})
    steps = {row[:2]: row[2:] for row in denisov_page.steps_table(size, results).rows}
    assert steps["constant rate", "8"] == ("–", "–", "+3.0 ± 1.0", "–")
    assert steps["cooldown", "8"] == ("–", "–", "–", "-2.0 ± 1.0")
    cooled = {row[0]: row[1:] for row in denisov_page.cooldown_table(size, results).rows}
    assert cooled["8"] == ("–", "–", "–", "–", "+3.0 ± 0.0")
    assert cooled["4"] == ("–",) * 5


def test_the_page_names_who_is_better_in_spite_of_a_larger_error(tmp_path):
    size = SIZES["small"]
    fill(tmp_path, size, "constant", ONLINE, {0: 0.80, 1: 0.81})
    fill(tmp_path, size, "constant", FULL, {0: 0.70, 1: 0.71})
    results = fill(tmp_path, size, "constant", FITTED, {0: 0.90, 1: 0.92})
    rows = {row[:2]: row[2:] for row in denisov_page.order_table(size, results).rows}
    assert rows["constant rate", "8"] == (f"{FITTED} > {ONLINE} > {FULL}", f"`{ONLINE}` above `{FULL}`")
    found = {ONLINE: {0: 0.85, 1: 0.80}, FULL: {0: 0.80, 1: 0.82}, PREFIX: {}}
    assert denisov_page.against(found, {ONLINE: 2.0, FULL: 1.0, PREFIX: 0.5}) == "–"


def test_the_finding_stands_on_the_page_only_when_every_run_has_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(denisov_mechanisms, "FOUND", {"small": "They differ."})
    fill(tmp_path, SIZES["small"], "constant", FITTED, {0: 0.9})
    denisov_mechanisms.reproduce(tmp_path, Means(compute=False))
    text = (tmp_path / f"{NAME}.md").read_text()
    assert "**Unfinished: 1 of 200 runs are there.**" in text
    assert "What we find" not in text
    before = (tmp_path / f"{NAME}.md").read_bytes()
    denisov_mechanisms.reproduce(tmp_path, Means(size="laptop", compute=False))
    assert (tmp_path / f"{NAME}.md").read_bytes() == before
    assert "Unfinished: 0 of 200" in (tmp_path / f"{NAME}_laptop.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), f"data is null, but {NAME} trains on handwriting by writer"),
        (("size=huge",), "size is 'huge'; it must be one of small, laptop, paper."),
    ],
)
def test_mistakes_are_refused_before_anything_is_written(tmp_path, capsys, arguments, said):
    code, _, err = called(capsys, f"name={NAME}", f"directory={tmp_path}/new", *arguments)
    assert code == 2
    assert said in err
    assert not (tmp_path / "new").exists()


def test_other_data_are_refused_before_the_first_run(tmp_path, capsys):
    other = tmp_path / "other.npz"
    other.write_text("x,y")
    code, _, err = called(capsys, f"name={NAME}", f"data={other}", f"directory={tmp_path}/new")
    assert code == 2
    assert f"{other} is no file of" in err
    assert not (tmp_path / "new").exists()


def test_the_paper_size_is_built_and_accounted_and_trains_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(SIZES, "paper", replace(SIZES["paper"], rounds=16, epsilons=(3.7,)))
    code, out, _ = called(capsys, f"name={NAME}", "size=paper", "output=json", f"directory={tmp_path}")
    assert code == 0
    document = json.loads(out)
    rows = {(row["schedule"], row["mechanism"]): row for row in document["rows"]}
    assert len(rows) == 11
    for row in rows.values():
        assert (row["noise multiplier"], row["printed epsilon"]) == (1.364, 3.7)  # as printed
        assert row["exact epsilon"] == pytest.approx(3.44, abs=0.005)
        assert row["bytes of values"] == 4 * 2**22
    assert (
        rows["constant rate", FITTED]["error in the model"]
        < rows["constant rate", PREFIX]["error in the model"]
    )
    runs = 11 * (10 + 4)
    assert any(f"{runs:,} runs" in note and f"{runs * 16:,} rounds" in note for note in document["notes"])
    assert sum(note.count("optimizer.schedule=") for note in document["notes"]) == 1
    assert not list(tmp_path.iterdir())


def test_the_papers_noise_multipliers_stand_beside_the_epsilons_that_it_prints():
    size = SIZES["paper"]
    assert size.epsilons == (18.9, 8.2, 3.7, 1.7, 0.8)
    assert [size.noise_multipliers[epsilon] for epsilon in size.epsilons] == [
        0.341,
        0.682,
        1.364,
        2.728,
        5.456,
    ]
    assert not SIZES["small"].noise_multipliers


def test_one_pass_of_the_paper_size_fits_the_users_also_while_rates_are_tuned():
    size = SIZES["paper"]
    left = len(denisov_paper.blank(size).clients)
    assert denisov_paper.USERS - left == int(size.held_out * denisov_paper.USERS)
    assert size.cohort * size.rounds <= left


def test_a_mechanism_looks_the_same_in_all_panels_and_errors_are_what_lacks_to_a_hundred(
    tmp_path, monkeypatch
):
    monkeypatch.setitem(COMPARED, "constant", (PREFIX, FITTED))
    size = replace(SIZES["small"], rounds=8)
    fill(tmp_path, size, "constant", FITTED, {0: 0.88, 1: 0.92})
    results = fill(tmp_path, size, "cooldown", FITTED, {0: 0.88, 1: 0.92})
    above, below = Figure().subplots(2, 2)
    for schedule, trained, exact in zip(COMPARED, above, below, strict=True):
        denisov_plot.draw_accuracy(trained, size, schedule, results)
        denisov_plot.draw_noise(exact, size, schedule)
    drawn = [line for panel in (*above, *below) for line in panel.lines if line.get_label() == FITTED]
    assert len(drawn) == 4
    assert {line.get_color() for line in drawn} == {LOOKS[FITTED].line["color"]}
    assert list(drawn[0].get_ydata()) == pytest.approx([10.0])
    np.testing.assert_array_equal(
        drawn[2].get_ydata(), factorization(size, "constant", FITTED).per_round_error
    )
