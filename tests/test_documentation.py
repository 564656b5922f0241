"""The documents: their programs run as written, what they name exists, their links lead somewhere."""

import importlib
import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

from runs import page_section

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / "docs/report/report.tex"
DOCUMENTS = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", REPORT])
FOLDERS = "docs|tests|conf|fedmf|server|client|experiments"

PATH = re.compile(rf"(?<![\w/.:~-])(?:{FOLDERS})/[\w./-]*\w")
FILE = re.compile(r"`(\w+\.py)`")
DOTTED = re.compile(
    r"(?<![\w/.:~-])(?:experiments|fedmf)(?!\.example\b)(?:\.\w+)+"
)  # fedmf.example.org is a host
LINK = re.compile(r"\]\(([^)\s]+)\)")

document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


def text_of(document):
    """Return the text of a document, with the underscores of TeX as they are typed in a command."""
    return document.read_text().replace("\\_", "_")


def test_the_app_of_your_own_runs_as_written(capsys):
    names = {}
    for program in re.findall(r"```python\n(.*?)```", page_section("extend.md", "A Flower app"), re.DOTALL):
        exec(program, names)
    assert "20 rounds" in capsys.readouterr().out
    assert np.isfinite(names["strategy"].state.model).all()
    assert names["plan"].spent().epsilon <= 4.0


def missing_paths(text):
    """Return the paths in `text` that do not exist; NAME in capitals stands for any name."""
    named = {path for path in PATH.findall(text) if not re.search(r"\b[A-Z]+\b(?!\.md)", path)}
    gone = {path for path in named if not (ROOT / path).exists()}
    bare = {name for name in FILE.findall(text) if f"\n# {name}\n" not in text}
    return gone | {name for name in bare if name not in {file.name for file in python_files()}}


def python_files():
    return [file for folder in FOLDERS.split("|") for file in (ROOT / folder).rglob("*.py")]


def missing_modules(text):
    """Return the dotted names in `text` that cannot be imported; NAME in capitals stands for any name."""
    return {name for name in set(DOTTED.findall(text)) if not importable(name)}


def importable(dotted):
    """Return whether `dotted` is a module, or something that a module holds."""
    parts = dotted.split(".")
    if any(part.isupper() for part in parts[1:]):
        return True
    for end in range(len(parts), 0, -1):
        try:
            module = importlib.util.find_spec(".".join(parts[:end]))
        except ModuleNotFoundError:  # a parent is no package
            continue
        if module is not None:
            held = importlib.import_module(".".join(parts[:end])) if end < len(parts) else None
            for name in parts[end:]:
                held = getattr(held, name, None)
                if held is None:
                    return False
            return True
    return False


def dead_links(file, text):
    """Return the links of `text`, as it would stand in `file`, to files of the repository that are not there."""
    local = {link.partition("#")[0] for link in LINK.findall(text) if not re.match(r"https?:", link)}
    return {link for link in local if link and not (file.parent / link).exists()}


@document
def test_every_path_that_a_document_names_exists(document):
    assert not missing_paths(text_of(document))


@document
def test_every_module_that_a_document_names_exists(document):
    assert not missing_modules(text_of(document))


@document
def test_every_link_leads_to_a_file_on_a_code_host_too(document):
    assert not dead_links(document, document.read_text())


def test_every_document_that_the_code_names_exists():
    code = [file.read_text() for file in python_files() if ROOT / "tests" not in file.parents]
    named = {name for text in code for name in re.findall(r"\bdocs/\w+\.md\b", text)}
    assert len(named) > 3
    assert not {name for name in named if not (ROOT / name).exists()}


def test_contributing_names_every_room():
    """A package of experiments/ that is no command, and every package of fedmf/, has a row."""
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("## Packages")[2].partition("\n## ")[0]
    listed = set(re.findall(r"^\| `([\w/]+)/` \|", table, re.MULTILINE))
    rooms = {
        str(folder.parent.relative_to(ROOT))
        for package in ("fedmf", "experiments")
        for folder in (ROOT / package).glob("*/__init__.py")
        if not (folder.parent / "__main__.py").exists()
    }
    assert listed == rooms | {"fedmf", "server", "client", "conf", "experiments"}


def test_what_has_moved_away_would_be_seen():
    assert missing_paths("see `tests/server/test_gone.py`, conf/nowhere and `gone.py`") == {
        "tests/server/test_gone.py",
        "conf/nowhere",
        "gone.py",
    }
    assert not missing_paths("`server/state.py`, `test_state.py`, `conf/GROUP/NAME.yaml` and /opt/fedmf/gone")
    gone = {"experiments.nowhere", "fedmf.plan.no_such_name"}
    assert missing_modules("`experiments.nowhere`, `fedmf.plan.make_plan`, fedmf.plan.no_such_name") == gone
    assert not missing_modules("experiments.COMMAND, fedmf.example.org, python -m experiments.audit rows=[a]")
    assert dead_links(ROOT / "README.md", "[a](docs/gone.md#x), [b](docs/data.md#y), [c](#z)") == {
        "docs/gone.md"
    }


def test_every_test_and_plot_that_the_report_names_is_there():
    text = text_of(REPORT)
    code = "".join(file.read_text() for file in (ROOT / "tests").rglob("*.py"))
    named = re.findall(r"-k (\w+)", text)
    assert len(named) >= 3
    assert not [name for name in named if name not in code]
    plots = re.findall(r"includegraphics\[[^]]*\]\{([^}]*)\}", text)
    assert plots
    assert all(
        any((ROOT / "docs" / folder / plot).exists() for folder in ("results", "assets")) for plot in plots
    )
