"""docs/privacy.md names the test of every known trap: none may be missing, and none may be a name only."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TRAPS = 28
ERRATA = 16
DEFINED = {
    name
    for file in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^def (test_\w+)", file.read_text(), flags=re.MULTILINE)
}


def test_every_known_trap_has_its_test():
    table = (ROOT / "docs/privacy.md").read_text().partition("### The known traps")[2].partition("\n## ")[0]
    named = re.findall(r"^\| [^|`]+ \| `(test_\w+)` \|$", table, flags=re.MULTILINE)
    assert len(named) == len(set(named)) == TRAPS
    assert set(named) <= DEFINED


@pytest.mark.parametrize("document", sorted(path.name for path in (ROOT / "docs").glob("*.md")))
def test_every_test_that_a_document_names_is_there(document):
    named = re.findall(r"`(test_\w+)`", (ROOT / "docs" / document).read_text())
    assert set(named) <= DEFINED


def test_every_erratum_names_a_test_that_its_command_finds():
    page = (ROOT / "docs/errata.md").read_text()
    named = re.findall(r"\| `(\w+)`[^|]*\|$", page, flags=re.MULTILINE) + re.findall(r"\(`(\w+)`", page)
    assert len(named) == ERRATA
    for name in named:
        assert any(name in test for test in DEFINED), name
