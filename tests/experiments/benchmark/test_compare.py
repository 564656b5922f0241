"""`compare=`: real other systems beside ours in one run, what is refused, and the page that the command writes."""

import json
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from benchmark_runs import run_benchmark
from experiments.benchmark import __main__ as benchmark, environments, page, simulation, tables
from experiments.benchmark.row import Row
from experiments.benchmark.simulation import Federation

TINY = Federation("logistic", 62, cohort_size=8, examples=20)
PAGE = Path(__file__).parents[3] / "docs" / "performance.md"


@pytest.fixture(autouse=True)
def tiny_rows(monkeypatch):
    rows = {
        "mask": lambda: Row(lambda: None, lambda: None, "nothing | at all", 4),
        "simulation_logistic": partial(simulation.simulation, TINY, 1.5),
    }
    monkeypatch.setattr(benchmark, "ROWS", rows)
    monkeypatch.setattr(benchmark, "FEDERATIONS", {"simulation_logistic": TINY})
    monkeypatch.setattr(simulation, "ROUNDS", 4)


def check_beside(capsys, name):
    """Let the system `name` play a few rounds of the tiny federation, and look at what is said of them."""
    code, out, err = run_benchmark(
        capsys, f"compare={name}", "rows=[simulation_logistic]", "repeats=3", "output=json"
    )
    assert code == 0, err
    row = json.loads(out)["simulation_logistic"]
    theirs = row["others"][name]
    assert set(theirs) == {"ratio", "seconds", "floor"}
    assert theirs["ratio"] == pytest.approx(theirs["seconds"] / theirs["floor"])
    assert 1.0 < theirs["ratio"] < 1000
    assert row["turns"] == 3
    return theirs


@pytest.mark.slow
def test_pfl_plays_the_same_clients_in_the_same_turns(capsys, monkeypatch):
    """The real one, installed for this test where a package index can be reached; minutes at the first time."""
    try:
        environments.ready_python("pfl", environments.pins()["pfl"], lambda line: None)
    except environments.SettingError as error:
        pytest.skip(f"pfl cannot be installed here: {error}")
    assert check_beside(capsys, "pfl")["ratio"] < 20


@pytest.mark.ray
def test_flowers_own_engine_plays_the_same_clients_in_the_same_turns(capsys, monkeypatch):
    """Its pinned version is the one that our own interpreter has, so no environment is made."""
    monkeypatch.setattr(benchmark, "ready_python", lambda *which: Path(sys.executable))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert check_beside(capsys, "flower")["ratio"] > 2


def test_one_system_needs_no_brackets():
    assert benchmark.in_full(["compare=flower"]) == ["compare=[flower]"]
    both = ["compare=[pfl,flower]", "compare=null", "rows=[mask]"]
    assert benchmark.in_full(both) == both


def test_two_systems_need_no_brackets():
    assert benchmark.in_full(["compare=pfl,flower"]) == ["compare=[pfl,flower]"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare=tff"], "compare is 'tff'; it must be one of pfl, flower"),
        (["compare=pfl,tff"], "compare is 'tff'; it must be one of pfl, flower"),
        (
            ["compare=pfl,flower", "rows=[mask]"],
            "compare is pfl, flower, but no row that other systems can play",
        ),
        (["compare=pfl", "rows=[mask]"], "no row that other systems can play is among the rows"),
        (["page=README.md", "rows=[mask]"], "page and rows are both given"),
        (["page=nowhere.md"], "page is nowhere.md, which is no file"),
        (["limits=set"], "keep"),
    ],
)
def test_what_cannot_be_followed_exits_2_before_anything_is_measured(capsys, arguments, message, monkeypatch):
    monkeypatch.setattr(benchmark, "ready_python", lambda *which: pytest.fail("an environment was made"))
    code, out, err = run_benchmark(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert "mask\n" not in err


def test_a_page_gets_its_tables_and_keeps_every_other_byte(capsys, tmp_path):
    path = tmp_path / "page.md"
    before, between, after = (
        "# Speed\r\n\nä, words  \n",
        "\nwords of the comparison\n",
        "\n| a | b |\nend\n\n",
    )
    rows, end = "<!-- benchmark: rows -->", "<!-- /benchmark -->"
    compared = f"<!-- benchmark: compared -->\nold comparison\n{end}"
    path.write_bytes(f"{before}{rows}\nold table\n{end}{between}{compared}{after}".encode())
    code, _, err = run_benchmark(capsys, f"page={path}", "repeats=1")
    assert code == 0, err
    text = path.read_bytes().decode()
    start, stop = text.index(rows) + len(rows), text.index(end)
    assert text[:start] == before + rows
    assert text[stop:] == f"{end}{between}{compared}{after}"  # nothing was compared: the old comparison stays
    table = text[start:stop]
    assert "    python -m experiments.benchmark repeats=1\n" in table
    assert (
        "| row | ratio | goal | ours | floor | what the floor is |\n|---|---:|---:|---:|---:|---|\n| mask |"
        in table
    )
    assert "nothing \\| at all" in table
    assert "torch" in table.rstrip().splitlines()[-1]
    code, _, _ = run_benchmark(capsys, f"page={path}", "repeats=1")
    assert path.read_bytes().decode()[:start] == text[:start]


def test_every_table_of_a_page_goes_to_its_own_place(tmp_path):
    path = tmp_path / "page.md"
    places = [
        f"<!-- benchmark: {name} -->\nold\n<!-- /benchmark -->\n" for name in (page.ROWS, page.COMPARED)
    ]
    path.write_text("\n".join(places))
    page.write(path, {page.COMPARED: "new one", page.ROWS: "new two"})
    written = "\n".join(places).replace("old", "\nnew two\n", 1).replace("old", "\nnew one\n")
    assert path.read_text() == written


def test_a_page_without_a_place_for_a_table_is_refused_before_anything_is_measured(capsys, tmp_path):
    path = tmp_path / "page.md"
    path.write_text("<!-- benchmark: rows -->\nand no end")
    code, out, err = run_benchmark(capsys, f"page={path}")
    assert (code, out) == (2, "")
    assert "the table 'rows' has no place" in err
    assert "1/2" not in err
    assert path.read_text() == "<!-- benchmark: rows -->\nand no end"


def test_the_page_of_the_project_has_places_for_both_tables():
    assert page.read(PAGE, (page.ROWS, page.COMPARED))


def test_the_comparison_is_one_table_of_the_bare_loop_ours_and_theirs():
    results = {
        "mask": {"ratio": 2.0, "goal": None, "seconds": 1.0, "floor": 0.5, "floor_is": "x"},
        "simulation_mlp": {
            "ratio": 1.25,
            "goal": None,
            "seconds": 0.1,
            "floor": 0.08,
            "floor_is": "x",
            "others": {
                "pfl": {"ratio": 2.0, "seconds": 0.16, "floor": 0.08},
                "flower": {"ratio": 12.5, "seconds": 1.0, "floor": 0.08},
            },
        },
    }
    headings, lines = tables.compared(results)
    assert headings == ("row", "bare loop", "ours", "pfl", "Flower's engine")
    assert lines == [("simulation_mlp", "80 ms", "100 ms (1.25)", "160 ms (2)", "1,000 ms (12.5)")]


def test_the_page_names_the_command_that_measures_it_again():
    settings = benchmark.BenchmarkSettings(
        None,
        15,
        ("pfl", "flower"),
        benchmark.Device.cpu,
        False,
        benchmark.Limits.keep,
        "docs/performance.md",
        benchmark.Output.text,
    )
    assert settings.line == "python -m experiments.benchmark compare=[pfl,flower] repeats=15"
    some = replace(settings, rows=("mask",), compare=None, limits=benchmark.Limits.write)
    assert some.line == "python -m experiments.benchmark rows=[mask] repeats=15 limits=write"
    assert os.linesep not in settings.line
