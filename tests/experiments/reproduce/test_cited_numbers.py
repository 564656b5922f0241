"""The table of checks: what agrees is told from what does not, and each line names a test or a command that exists."""

import re
from pathlib import Path

import pytest

from experiments.reproduce import CLOSED, cited_numbers, denisov_table2
from experiments.reproduce.cited_numbers import COLUMNS

TESTS = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(denisov_table2, "PUBLISHED", {256: (74.4, 40.4, 40.5), 512: (116.5, 62.4, 62.1)})
        return cited_numbers.reproduce(tmp_path_factory.mktemp("checks"), "small")


def lines(result, what):
    found = [dict(zip(COLUMNS, row, strict=True)) for row in result.tables[0].rows]
    return [line for line in found if what in line["what"]]


def test_an_entry_agrees_only_to_the_last_digit_printed(result):
    findings = {
        line["what"]: line["finding"] for line in lines(result, "rounds") if line["where"] == "Table 2"
    }
    assert findings == {
        "Honaker, 256 rounds": "agrees",
        "optimal, 256 rounds": "agrees",
        "efficient, 256 rounds": "ours is lower",
        "Honaker, 512 rounds": "agrees",
        "optimal, 512 rounds": "had not converged",
        "efficient, 512 rounds": "agrees",
    }


def test_the_printed_epsilons_agree_by_integer_orders_and_are_lower_exactly(result):
    for way, finding in (("integer orders", "agrees"), ("exact", "ours is lower")):
        assert len(lines(result, way)) == 5
        # .759 is no .8, though it is printed so
        assert {line["finding"] for line in lines(result, way)} == {finding}
    (first,) = lines(result, "0.341, exact")
    assert first["ours"] == pytest.approx(17.648, abs=6e-4)
    assert first["deviation, %"] == pytest.approx(100 * (17.648 / 18.9 - 1), abs=0.01)


def test_the_bounds_that_fail_are_said_to(result):
    findings = {line["what"]: line["finding"] for line in lines(result, "at most")}
    assert findings.pop("Theorem 2 less Theorem 3 up to 2^50 rounds, at most") == "the bound fails"
    assert list(findings.values()) == ["the bound fails"] * 2 + ["holds"] * 2  # up to 6 rounds, and from 7 on


def test_the_slips_are_as_large_as_the_errata_say(result):
    (total,), (gaussian,) = lines(result, "the sum from l = 1"), lines(result, "of the Gaussian")
    assert total["printed"] / total["ours"] == pytest.approx(2837, rel=1e-2)
    assert gaussian["printed"] / gaussian["ours"] == pytest.approx(2, rel=1e-9)


def test_each_check_names_a_test_or_a_command_that_exists(result):
    source = "\n".join(path.read_text() for path in (TESTS / "fedmf").rglob("test_*.py"))
    for *_, shown_by in result.tables[0].rows:
        if command := re.fullmatch(r"reproduce name=(\w+)", shown_by):
            assert command[1] in CLOSED
        else:
            assert re.search(rf"def test_\w*{shown_by}", source), shown_by


def test_the_summary_counts_what_agrees_and_its_worst_error(result):
    rows = result.tables[0].rows
    agreeing = [row for row in rows if row[6] == "agrees"]
    assert result.tables[0].note == f"{len(agreeing)} of {len(rows)} agree to the last digit printed."
    assert result.worst_relative_error == pytest.approx(max(abs(row[5]) for row in agreeing) / 100, abs=1e-6)
    assert result.figures[0].read_bytes().startswith(b"\x89PNG")
