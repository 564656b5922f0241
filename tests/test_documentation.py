"""The documents: programs run as written, names and links lead somewhere, alerts are of metrics that exist; and the website."""

import ast
import importlib.util
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from playwright.sync_api import sync_playwright

from client.data.text import read_vocabulary
from experiments.session.monitoring import GAUGES
from runs import ROOT, page_section, summary

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


def test_a_run_of_your_own_objects_runs_as_written(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (program,) = re.findall(r"```python\n(.*?)```", page_section("extend.md", "From Python"), re.DOTALL)
    exec(program, names := {"__name__": "__main__"})
    assert "<Result objects" in capsys.readouterr().out
    assert names["result"].run.config["model"]["name"].endswith(":Net")
    assert names["result"].stopped is None


def missing(file, text):
    """Return what `text`, as part of `file`, names and is not there; NAME in capitals stands for any name.

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
    """A package of experiments/ that is no command, and every package of fedmf/ and client/, has a row."""
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("## Packages")[2].partition("\n## ")[0]
    listed = set(re.findall(r"^\| `([\w/]+)/` \|", table, re.MULTILINE))
    packages = {
        str(folder.parent.relative_to(ROOT))
        for package in ("fedmf", "client", "experiments")
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
    for module in re.findall(r"python -m ([\w.]+)", text):
        places = [ROOT / folder / module.replace(".", "/") for folder in ("", "tests", "tests/helpers")]
        assert any(place.is_dir() or place.with_suffix(".py").exists() for place in places), module


RULES, SCRAPE = ROOT / "docs/prometheus/fedmf-alerts.yml", ROOT / "docs/prometheus/prometheus.yml"
PAGE = (ROOT / "docs/deployment.md").read_text()
OWN = {f"fedmf_{name}" for name in GAUGES} | {"fedmf_run_info"}
# Of PromQL, and of Prometheus itself for every target.
WORDS = {"time", "or", "and", "unless", "up", "job"}
ALERTS = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def unknown(expression):
    """Return the names in an expression that are no metric of ours and no word of PromQL."""
    return set(re.findall(r"[A-Za-z_]\w*", re.sub(r'"[^"]*"', "", expression))) - OWN - WORDS


def headings(page):
    """Return the anchors that a page has, as the website and code hosts make them."""
    titles = re.findall(r"(?m)^#+ (.+)$", (ROOT / page).read_text())
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_is_of_metrics_that_there_are_and_says_what_to_do_and_where_that_is_said_at_length(alert):
    """What our expressions take of PromQL is Python but for selectors and `unless`; promtool may be not installed."""
    assert not unknown(alert["expr"])
    assert "fedmf" in alert["expr"]
    ast.parse(re.sub(r"{[^{}]*}", "", alert["expr"]).replace(" unless ", " and "), mode="eval")
    assert set(alert) - {"for"} == {"alert", "expr", "labels", "annotations"}
    assert re.fullmatch(r"\d+[smhd]", alert.get("for", "0s"))
    notes = alert["annotations"]
    assert set(notes) == {"summary", "action", "runbook"}
    assert all(notes[key].endswith(".") and len(notes[key]) > 15 for key in ("summary", "action"))
    assert alert["labels"]["severity"] in ("critical", "warning")
    page, _, anchor = notes["runbook"].partition("#")
    assert anchor in headings(page)


def test_a_metric_that_there_is_not_would_be_seen():
    assert unknown('fedmf_gone > 1 and up{job="fedmf"} == 0') == {"fedmf_gone"}


def test_what_is_scraped_is_what_the_rules_are_about():
    scrape = yaml.safe_load(SCRAPE.read_text())
    (job,) = scrape["scrape_configs"]
    assert job["job_name"] == "fedmf"
    assert any('up{job="fedmf"}' in alert["expr"] for alert in ALERTS)
    assert job["static_configs"] == [{"targets": ["127.0.0.1:9400"]}]
    assert [path.rpartition("/")[2] for path in scrape["rule_files"]] == [RULES.name]
    assert "run.metrics_port=9400" in PAGE
    (line,) = re.findall(r'(?m)^    (\{"time".*\})$', PAGE)  # the example of a line of the log
    assert list(json.loads(line)) == ["time", "level", "logger", "message", "run"]


TUTORIAL = (ROOT / "docs/tutorial.md").read_text()
MODELS = page_section("extend.md", "Models") + page_section("extend.md", "Training")
TRAINED = {"probe": 330, "adapted": 330 + 2 * (64 + 32), "loop": 650}  # parameters of each run of `MODELS`


def run_blocks(text: str, folder: Path) -> Path:
    """Run the programs and commands of a page in `folder`, write its modules there; return the folder of the runs."""
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {
        "PATH": search,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]),
    }
    for language, block in re.findall(r"```(python|yaml|sh)\n(.*?)```", text, re.DOTALL):
        if language != "sh" and block.startswith("# "):
            (folder / block.splitlines()[0].removeprefix("# ")).write_text(block)
            continue
        program = ["bash", "-ec"] if language == "sh" else [sys.executable, "-c"]
        done = subprocess.run(
            [*program, block], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, f"{block}\n{done.stderr}"
    return folder / "runs"


@pytest.mark.slow
def test_the_tutorial_runs_as_written(tmp_path: Path) -> None:
    runs = run_blocks(TUTORIAL, tmp_path)
    pages = [f"{name}/report.html" for name in ("first", "mine", "custom", "fading")]
    assert all((runs / page).is_file() for page in (*pages, "sweep/compare.html"))
    assert "one user = one client" in (runs / "mine" / "privacy.json").read_text()
    assert len(list((runs / "sweep").glob("*/summary.json"))) == 4
    assert len(read_vocabulary(tmp_path / "words.txt", 20_000)[0]) == 10_000


@pytest.mark.slow
def test_the_examples_of_models_run_as_written_and_train_what_they_say(tmp_path: Path) -> None:
    runs = run_blocks(MODELS, tmp_path)
    assert {name: summary(runs / name)["parameters"] for name in TRAINED} == TRAINED


LOADED = re.compile(
    r"<(?:script|link|img|iframe|source)\b[^>]*?\s(?:src|href)=[\"']?((?:[a-z]+:)?//[^\s\"'>]*)"
)


def tool(name):
    """Return a module of docs/site_tools, which is no package."""
    file = ROOT / "docs" / "site_tools" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"site_tools_{name}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_site_builds_without_a_warning_loads_nothing_from_another_host_has_every_public_module_and_finds(
    tmp_path,
):
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        timeout=300,
        check=True,
    )
    pages = {file.relative_to(tmp_path): file.read_text() for file in tmp_path.rglob("*.html")}
    assert len(pages) > 80
    assert LOADED.search('<script defer src="//cdn.example/x.js">')
    assert not {address for text in pages.values() for address in LOADED.findall(text)}
    for sheet in tmp_path.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import )['\"]?(?:https?:)?//", sheet.read_text()), sheet
    api = {
        Path("api") / file.relative_to(ROOT).with_suffix(".html")
        for name in ("fedmf", "server", "client")
        for file in (ROOT / name).rglob("[!_]*.py")
    }
    assert api <= set(pages)
    headings = {name for page in api for name in re.findall(r'<h\d id="([^"]*)"', pages[page])}
    assert {"fedmf.plan.make_plan", "server.strategy.FedMF.start"} <= headings
    assert not [name for name in headings if "._" in name]
    if (program := shutil.which(os.environ.get("CHROMIUM") or "chromium")) is None:
        return
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=program, args=flags, timeout=0).new_page()
        opened.set_default_timeout(300_000)  # milliseconds, for a busy machine
        opened.goto((tmp_path / "index.html").as_uri())
        opened.get_by_role("textbox", name="Search").fill("noise multiplier")
        opened.wait_for_selector(".md-search-result__item a[href*='/coming_from.html']", state="attached")


def test_formulas_of_a_docstring_survive_markdown():
    to_markdown = tool("docstrings").to_markdown
    assert to_markdown("Return a * b * c of x_t_ and <v, y>, `a_b_c`.") == (
        "Return a \\* b \\* c of x\\_t\\_ and &lt;v, y>, `a_b_c`."
    )
    assert to_markdown("Formula:\n\n    A = B * C\n\n    x_t\n\n>>> f(2)\n4") == (
        "Formula:\n\n```text\nA = B * C\n\nx_t\n```\n\n```pycon\n>>> f(2)\n4\n```"
    )
