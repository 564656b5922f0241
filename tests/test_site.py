"""The documentation as a website: it builds without a warning, loads nothing from elsewhere, shows every public module."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
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
def test_the_site_builds_without_a_warning_loads_nothing_from_another_host_and_has_every_public_module(
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
    api = {Path("api") / file.relative_to(ROOT).with_suffix(".html") for file in public_modules()}
    assert api <= set(pages)
    headings = {name for page in api for name in re.findall(r'<h\d id="([^"]*)"', pages[page])}
    assert {"fedmf.plan.make_plan", "server.strategy.FedMF.start"} <= headings
    assert not [name for name in headings if "._" in name]


def public_modules():
    files = [file for package in ("fedmf", "server", "client") for file in (ROOT / package).rglob("*.py")]
    return [file for file in files if not file.name.startswith("_")]


def test_formulas_of_a_docstring_survive_markdown():
    to_markdown = tool("docstrings").to_markdown
    assert to_markdown("Return a * b * c of x_t_ and <v, y>, `a_b_c`.") == (
        "Return a \\* b \\* c of x\\_t\\_ and &lt;v, y>, `a_b_c`."
    )
    assert to_markdown("Formula:\n\n    A = B * C\n\n    x_t\n\n>>> f(2)\n4") == (
        "Formula:\n\n```text\nA = B * C\n\nx_t\n```\n\n```pycon\n>>> f(2)\n4\n```"
    )
