"""The documents: their programs run as written, what they name exists, their links lead somewhere."""

import pkgutil
import re
from pathlib import Path

import numpy as np
import pytest

from runs import page_section

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / "docs/report/report.tex"
DOCUMENTS = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", REPORT])
FOLDERS = "docs|tests|conf|fedmf|server|client|experiments"
FILES = [file for folder in FOLDERS.split("|") for file in (ROOT / folder).rglob("*.py")]

PATH = re.compile(rf"(?<![\w/.:~-])(?:{FOLDERS})/[\w./-]*\w")
FILE = re.compile(r"`(\w+\.py)`")
# fedmf.example.org is a host
DOTTED = re.compile(r"(?<![\w/.:~-])(?:experiments|fedmf)(?!\.example\b)(?:\.\w+)+")
LINK = re.compile(r"\]\((?!https?:)([^)\s#]+)")


def test_the_app_of_your_own_runs_as_written(capsys):
    names = {}
    for program in re.findall(r"```python\n(.*?)```", page_section("extend.md", "A Flower app"), re.DOTALL):
        exec(program, names)
    assert "20 rounds" in capsys.readouterr().out
    assert np.isfinite(names["strategy"].state.model).all()
    assert names["plan"].spent().epsilon <= 4.0


def missing(file, text):
    """Return what `text`, as it would stand in `file`, names and is not there; NAME in capitals stands for any name.

    Paths of the repository, names of files, dotted names of modules and what they contain, and links.
    """
    paths = {path for path in PATH.findall(text) if not re.search(r"\b[A-Z]+\b(?!\.md)", path)}
    bare = {name for name in FILE.findall(text) if f"\n# {name}\n" not in text} - {one.name for one in FILES}
    links = {
        link for link in LINK.findall(text) if file.suffix == ".md" and not (file.parent / link).exists()
    }
    dotted = {name for name in DOTTED.findall(text) if not importable(name)}
    return {path for path in paths if not (ROOT / path).exists()} | bare | links | dotted


def importable(dotted):
    """Return whether `dotted` is a module, or something that a module contains."""
    if any(part.isupper() for part in dotted.split(".")[1:]):
        return True
    module, _, name = dotted.rpartition(".")
    try:
        pkgutil.resolve_name(dotted)
    except (ImportError, AttributeError):
        return bool(module) and name == "__main__"
    return True


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_what_a_document_names_exists(document):
    """The underscores of TeX are as one types them in a command."""
    assert not missing(document, document.read_text().replace("\\_", "_"))


def test_what_has_moved_away_would_be_seen():
    gone = {
        "tests/server/test_gone.py",
        "conf/nowhere",
        "gone.py",
        "experiments.nowhere",
        "fedmf.plan.nowhere",
    }
    there = (
        "`server/state.py`, `conf/GROUP/NAME.yaml`, /opt/fedmf/gone, experiments.COMMAND, fedmf.example.org"
    )
    text = "`tests/server/test_gone.py`, conf/nowhere, `gone.py`, `experiments.nowhere`, fedmf.plan.nowhere"
    links = "[a](docs/gone.md#x), [b](docs/data.md#y), [c](#z)"
    assert missing(ROOT / "README.md", text + there + links) == {*gone, "docs/gone.md"}


def test_every_document_that_the_code_names_exists():
    code = "".join(file.read_text() for file in FILES if ROOT / "tests" not in file.parents)
    named = set(re.findall(r"\bdocs/\w+\.md\b", code))
    assert len(named) > 3
    assert not {name for name in named if not (ROOT / name).exists()}


def test_contributing_names_every_package():
    """A package of experiments/ that is no command, and every package of fedmf/, has a row."""
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("## Packages")[2].partition("\n## ")[0]
    listed = set(re.findall(r"^\| `([\w/]+)/` \|", table, re.MULTILINE))
    packages = {
        str(folder.parent.relative_to(ROOT))
        for package in ("fedmf", "experiments")
        for folder in (ROOT / package).glob("*/__init__.py")
        if not (folder.parent / "__main__.py").exists()
    }
    assert listed == packages | {"fedmf", "server", "client", "conf", "experiments"}


def test_every_test_and_plot_that_the_report_names_is_there():
    text = REPORT.read_text().replace("\\_", "_")
    code = "".join(file.read_text() for file in FILES if ROOT / "tests" in file.parents)
    named, plots = re.findall(r"-k (\w+)", text), re.findall(r"includegraphics\[[^]]*\]\{([^}]*)\}", text)
    assert len(named) >= 3
    assert plots
    assert not [name for name in named if name not in code]
    folders = [ROOT / "docs" / folder for folder in ("results", "assets")]
    assert all(any((folder / plot).exists() for folder in folders) for plot in plots)
