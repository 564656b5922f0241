"""The training experiments of the sparsified matrix mechanism: what is compared, and their pages from real runs."""

import json
from dataclasses import replace

import pytest

from experiments.cli import command
from experiments.reproduce import Means, sgmf_csgm, sgmf_femnist, sgmf_page, sgmf_paper, sgmf_training
from experiments.reproduce.__main__ import ReproduceSettings, reproduce
from experiments.reproduce.results import Results
from experiments.reproduce.sgmf_training import (
    EPOCH,
    HONAKER,
    INDEPENDENT,
    LINF,
    LINF_NARROW,
    NO_EPOCHS,
    SIZES,
    WHOLE_RUN,
    WHOLE_RUN_NARROW,
)  # fmt: skip
from experiments.reproduce.trials import Outcome, Trial
from experiments.reproduce.whole_run import COMMON, Task
from experiments.run_files.same_settings import fixed
from experiments.settings.compose import compose
from experiments.settings.experiment import build
from experiments.settings.schema import Settings
from fedmf.errors import RunDirectoryError
from server.files import locked

pytestmark = pytest.mark.long

PAGES = {"sgmf_femnist": sgmf_femnist.PAGE, "sgmf_csgm": sgmf_csgm.PAGE}
TINY = replace(
    SIZES["small"],
    task=Task("digits", "A few digits", (*COMMON, "dataset=digits", "model=logistic", "privacy.delta=1e-4"), 0.3, 1),
    dimension=650, cohort=8, rounds=2, epochs=2, epsilons=(8.0,), seeds=2, more=1,
    keep_probabilities=dict.fromkeys(PAGES, (0.5,)),
)  # fmt: skip


def settings_of(cell):
    return compose("config", cell.overrides, Settings)


def built(size, mechanism, keep=0.1, epsilon=8.0):
    """Return the plan of a cell on blank images with the size's number of clients."""
    clients = 3400 if size is SIZES["paper"] else 3782
    dataset = replace(sgmf_paper.blank(size), classes=62 if size is SIZES["paper"] else 10)
    image = dataset.clients[0]
    dataset = replace(dataset, clients=[image] * (clients - int(size.held_out * clients)))
    return build(settings_of(sgmf_training.cell(size, mechanism, keep, epsilon)), dataset).plan


def called(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        command.run(reproduce, "reproduce", ReproduceSettings, "doc", arguments)
    said = capsys.readouterr()
    return caught.value.code, said.out, said.err


def test_all_that_the_issue_asks_for_is_compared():
    for size in SIZES.values():
        assert size.keep_probabilities["sgmf_femnist"] == (1.0, 0.1, 0.03, 0.01, 0.003)
        assert len(size.epsilons) >= 2
        assert size.cohort == 100
        assert size.seeds >= 5
        assert size.seeds + size.more >= 10
        work = sgmf_training.study(size, (1.0,), (EPOCH,))
        assert work.seeds.final == tuple(range(size.seeds))
        assert work.more == tuple(range(size.seeds, size.seeds + size.more))
        assert not {*work.seeds.tuning} & {*range(10)}
    assert (SIZES["paper"].rounds, SIZES["paper"].epochs) == (32, 16)
    assert set(sgmf_femnist.PAGE.mechanisms) == {INDEPENDENT, HONAKER, EPOCH, WHOLE_RUN}
    assert set(sgmf_csgm.PAGE.mechanisms) == {
        LINF,
        LINF_NARROW,
        NO_EPOCHS,
        INDEPENDENT,
        EPOCH,
        WHOLE_RUN,
        WHOLE_RUN_NARROW,
    }


def test_both_pages_have_the_same_cells_where_they_show_the_same_mechanism():
    first, second = (
        set(sgmf_training.study(SIZES["small"], page_keeps, PAGES[name].mechanisms).cells)
        for name, page_keeps in SIZES["small"].keep_probabilities.items()
    )
    shared = {INDEPENDENT, EPOCH, WHOLE_RUN}
    assert {cell.mechanism for cell in first & second} == shared
    assert len(first & second) == len(shared) * 3 * 2


@pytest.mark.parametrize("name", PAGES)
def test_a_row_differs_in_the_noise_the_baselines_bounds_and_their_epochs_only(name):
    (row,) = sgmf_training.study(
        replace(SIZES["small"], epsilons=(2.0,)), (0.1,), PAGES[name].mechanisms
    ).rows
    may = {
        LINF: {"privacy.geometry"},
        LINF_NARROW: {"privacy.geometry", "clipping.linf_norm"},
        WHOLE_RUN_NARROW: {"clipping.linf_norm"},
        NO_EPOCHS: {"population.rounds_per_epoch", "population.epochs"},
    }
    usual = fixed(settings_of(next(cell for cell in row if cell.mechanism == INDEPENDENT)))
    for cell in row:
        own = fixed(settings_of(cell))
        differ = {key for key in own if own[key] != usual[key]} - {"mechanism.name", "workload"}
        assert differ == may.get(cell.mechanism, set())
    composed = {cell.mechanism: settings_of(cell) for cell in row}
    kinds = {name: (found.mechanism.name, found.workload.name) for name, found in composed.items()}
    expected = {HONAKER: ("honaker_online", "prefix_sum"), EPOCH: ("optimal", "momentum"), WHOLE_RUN: ("optimal", "run"), WHOLE_RUN_NARROW: ("optimal", "run")}  # fmt: skip
    assert kinds == {name: expected.get(name, ("independent", "prefix_sum")) for name in composed}


@pytest.mark.parametrize("name", SIZES)
def test_the_model_and_the_clients_are_those_that_a_size_says_also_while_rates_are_tuned(name):
    size = SIZES[name]
    plan = built(size, INDEPENDENT)
    assert plan.dimension == size.dimension
    assert (plan.participation.rounds_per_epoch, plan.participation.epochs) == (size.rounds, size.epochs)


def test_the_narrow_bound_costs_half_as_much_again_as_a_vector_of_equal_coordinates():
    """With everything kept the noise of Linf-CSGM is that of L2-CSGM times the L2 norm of D coordinates at the bound."""
    dense = built(SIZES["small"], INDEPENDENT, keep=1.0)
    narrow = built(SIZES["small"], LINF_NARROW, keep=1.0)
    assert narrow.sigma / dense.sigma == pytest.approx(1.5, rel=1e-4)
    assert built(SIZES["small"], LINF, keep=1.0).sigma / dense.sigma > 5
    one_by_one = built(SIZES["small"], NO_EPOCHS, keep=1.0)
    assert one_by_one.participation.rounds_per_epoch == 1
    assert one_by_one.participation.epochs == SIZES["small"].rounds * SIZES["small"].epochs


@pytest.mark.parametrize(("keep", "epsilon"), [(1.0, 2.0), (0.01, 8.0)])
def test_the_page_shows_the_noise_that_runs_have(keep, epsilon):
    for mechanism in (EPOCH, INDEPENDENT):
        plan = built(SIZES["small"], mechanism, keep, epsilon)
        shown = sgmf_page.noise_over_keep(7850, SIZES["small"], keep, epsilon)
        assert shown == pytest.approx(plan.noise_multiplier / keep)
    assert sgmf_page.noise_over_keep(1018174, SIZES["small"], 0.01, epsilon) < shown / 1.3 or keep == 1.0


@pytest.mark.parametrize("name", PAGES)
def test_real_runs_become_a_page_a_plot_and_nothing_is_computed_twice(tmp_path, monkeypatch, name):
    shown = tuple(one for one in PAGES[name].mechanisms if "narrow" not in one)  # for time
    found = {"small": "They differ.", "laptop": "They do not."}
    page = replace(PAGES[name], mechanisms=shown, found=found)
    found = sgmf_page.make(tmp_path, Means(), page, "small", TINY)
    text = (tmp_path / f"{name}.md").read_text()
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert found.figures == (tmp_path / f"{name}.png",)
    assert f"![Test accuracy against bytes sent per client]({name}.png)" in text
    assert len(found.rows) == len(TINY.keep_probabilities[name]) * len(page.mechanisms)
    assert {row[6] for row in found.rows} <= {2, 3}
    assert all(row[4] > 10 for row in found.rows)  # percent
    for _, mechanism, keep, _, mean, *_ in found.rows:
        column = 2 + page.mechanisms.index(mechanism)
        cells = next(line for line in text.splitlines() if line.startswith(f"| {keep:g} | 8 |")).split("|")
        assert f"{mean:.1f} ±" in cells[1 + column]
    assert "Unfinished" not in text
    assert "**What we find.** They differ." in text
    lines = (tmp_path / "sgmf.jsonl").read_bytes()
    monkeypatch.setattr(sgmf_page, "play", lambda trial, data: pytest.fail("it is there"))
    sgmf_page.make(tmp_path, Means(), page, "small", TINY)
    assert (tmp_path / f"{name}.md").read_text() == text
    assert (tmp_path / "sgmf.jsonl").read_bytes() == lines


def test_the_page_says_where_the_order_is_not_the_papers():
    page = sgmf_csgm.PAGE
    found = {name: {0: 0.80, 1: 0.70} for name in page.mechanisms}
    found |= {EPOCH: {0: 0.90, 1: 0.81}, LINF: {0: 0.81, 1: 0.71}}
    assert sgmf_page.differs(page, found) == f"`{INDEPENDENT}` is below `{LINF}`"
    found |= {EPOCH: {0: 0.82, 1: 0.69}, LINF: {0: 0.70, 1: 0.61}}
    assert sgmf_page.differs(page, found) == f"`{EPOCH}` is not told apart from `{INDEPENDENT}`"
    found |= {EPOCH: {0: 0.85, 1: 0.76}}
    assert sgmf_page.differs(page, found) == "–"
    assert sgmf_page.differs(page, {**found, EPOCH: {}}) == "–"


def test_the_page_says_what_compression_costs_and_what_is_sent(tmp_path):
    size = SIZES["small"]
    results = Results(tmp_path / "sgmf.jsonl")
    for keep, accuracies in ((1.0, (0.88, 0.90)), (0.01, (0.80, 0.84))):
        for seed, accuracy in enumerate(accuracies):
            trial = Trial(sgmf_training.cell(size, EPOCH, keep, 8.0), 0.15, seed)
            results.add(trial, Outcome(accuracy, None, 60.0))
    sgmf_femnist.reproduce(tmp_path, Means(compute=False))
    page = (tmp_path / "sgmf_femnist.md").read_text()
    cost = page[page.index("## What compression costs") :].splitlines()
    # the standard errors are 1 and 2 percent
    assert "| 0.01 | 8 | – | – | -7.0 ± 2.2 | – |" in cost
    assert "| 0.01 | 719 | 46.1 | 2,875 |" in page  # .01 of 8,192 values of 4 bytes, and 391
    noise = page[page.index("## The noise") :].splitlines()
    assert "| 0.01 | 6.12 | 4.32 | 3.63 | 1.34 |" in noise
    assert "What we find" not in page
    assert (
        "4 runs and 0 trials for tuning, 4 CPU minutes in all; over two cores that is 2 minutes each, which is not wall time"
        in page
    )


def test_another_size_has_a_page_of_its_own(tmp_path):
    sgmf_femnist.reproduce(tmp_path, Means(compute=False))
    before = (tmp_path / "sgmf_femnist.md").read_bytes()
    sgmf_femnist.reproduce(tmp_path, Means(size="laptop", compute=False))
    assert (tmp_path / "sgmf_femnist.md").read_bytes() == before
    assert "No run has ended yet." in (tmp_path / "sgmf_femnist_laptop.md").read_text()


@pytest.mark.parametrize("name", PAGES)
def test_without_data_nothing_is_computed_and_this_is_said(tmp_path, capsys, name):
    code, _, err = called(capsys, f"name={name}", f"directory={tmp_path}")
    assert code == 2
    assert f"data is null, but {name} trains on handwriting by writer" in err
    assert not list(tmp_path.iterdir())


def test_mistakes_are_refused_before_anything_is_written(tmp_path, capsys):
    code, _, err = called(capsys, "name=sgmf_csgm", "size=huge", f"directory={tmp_path}")
    assert code == 2
    assert "size is 'huge'; it must be one of small, laptop, paper." in err
    other = tmp_path / "other.npz"
    other.write_text("x,y")
    code, _, err = called(capsys, "name=sgmf_csgm", f"data={other}", f"directory={tmp_path}/new")
    assert code == 2
    assert f"{other} is no file of" in err
    assert not (tmp_path / "new").exists()


def test_two_calls_at_once_do_not_write_into_one_file(tmp_path):
    (tmp_path / ".running").mkdir()
    with locked(tmp_path / ".running" / "sgmf"), pytest.raises(RunDirectoryError, match="another process"):
        sgmf_page.make(tmp_path, Means(), sgmf_csgm.PAGE, "small", TINY)
    assert not (tmp_path / "sgmf.jsonl").exists()


def test_the_paper_size_is_built_and_accounted_and_trains_nothing(tmp_path, capsys, monkeypatch):
    size = replace(SIZES["paper"], keep_probabilities=dict.fromkeys(PAGES, (0.003,)), epsilons=(8.0,))
    monkeypatch.setitem(SIZES, "paper", size)
    code, out, _ = called(capsys, "name=sgmf_csgm", "size=paper", "output=json", f"directory={tmp_path}")
    assert code == 0
    document = json.loads(out)
    rows = {row["mechanism"]: row for row in document["rows"]}
    assert set(rows) == set(sgmf_csgm.PAGE.mechanisms)
    noises = [rows[name]["noise multiplier"] for name in (EPOCH, WHOLE_RUN)]
    assert noises == pytest.approx([0.00866] * 2, rel=1e-3)
    assert noises[0] == pytest.approx(noises[1], rel=1e-6)  # but for what rounding costs
    assert rows[EPOCH]["bytes of values"] == pytest.approx(0.003 * 4 * 2**20)
    runs = len(rows) * (10 + 4)
    assert any(f"{runs:,} runs" in note and f"{runs * 512:,} rounds" in note for note in document["notes"])
    assert not list(tmp_path.iterdir())


def test_a_page_of_no_run_changes_no_result(tmp_path):
    (tmp_path / "sgmf.jsonl").write_text('{"task": "torn')  # another process is writing
    sgmf_csgm.reproduce(tmp_path, Means(compute=False))
    assert (tmp_path / "sgmf.jsonl").read_text() == '{"task": "torn'
    assert len(Results(tmp_path / "sgmf.jsonl")) == 0
