"""The documentation as a website: it builds without a warning, loads nothing from elsewhere, shows every public module."""

import importlib.util
import re
from html.parser import HTMLParser
from pathlib import Path

import griffe
import pytest

from built_site import build

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ROOT / "docs" / "site_tools"


def tool(name):
    """Return a module of docs/site_tools, which is no package."""
    spec = importlib.util.spec_from_file_location(f"site_tools_{name}", TOOLS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Loaded(HTMLParser):
    """Collects what a page loads, and the ids of its headings."""

    def __init__(self):
        super().__init__()
        self.addresses, self.headings = [], []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag in ("script", "link", "img", "iframe", "source"):
            self.addresses += [given[name] for name in ("src", "href") if given.get(name)]
        if re.fullmatch(r"h[1-6]", tag) and given.get("id"):
            self.headings.append(given["id"])


def loaded(html):
    parser = Loaded()
    parser.feed(html)
    return parser


def foreign(addresses):
    return [address for address in addresses if re.match(r"(?:[a-z]+:)?//", address)]


def test_a_foreign_script_would_be_seen():
    page = loaded(
        '<script src="//cdn.example/x.js"></script><a href="https://b.example"><img src="../a.png">'
    )
    assert foreign(page.addresses) == ["//cdn.example/x.js"]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, and what its build said."""
    folder = tmp_path_factory.mktemp("site")
    return folder, build(folder)


@pytest.mark.slow
def test_the_site_builds_without_a_warning(site):
    assert "Documentation built" in site[1]
    assert "WARNING" not in site[1]


@pytest.mark.slow
def test_the_site_loads_nothing_from_another_host(site):
    pages = list(site[0].rglob("*.html"))
    assert len(pages) > 80
    assert not {address for page in pages for address in foreign(loaded(page.read_text()).addresses)}
    for sheet in site[0].rglob("*.css"):
        assert not re.search(r"(?:url\(|@import )['\"]?(?:https?:)?//", sheet.read_text()), sheet


@pytest.mark.slow
def test_every_public_module_has_a_page_and_no_private_name_is_on_one(site):
    modules = {
        file.relative_to(ROOT).with_suffix(".html")
        for package in ("fedmf", "server", "client")
        for file in (ROOT / package).rglob("*.py")
        if not file.name.startswith("_")
    }
    assert not {page for page in modules if not (site[0] / "api" / page).exists()}
    headings = [
        name for page in (site[0] / "api").rglob("*.html") for name in loaded(page.read_text()).headings
    ]
    assert "fedmf.plan.make_plan" in headings
    assert "server.strategy.FedMF.start" in headings
    assert not [name for name in headings if "._" in name]


@pytest.mark.slow
def test_no_example_of_a_docstring_is_taken_for_a_quotation(site):
    pages = [page.read_text() for page in (site[0] / "api").rglob("*.html")]
    assert any("&gt;&gt;&gt; " in page for page in pages)
    assert not any("<blockquote" in page for page in pages)


def test_formulas_of_a_docstring_survive_markdown():
    to_markdown = tool("docstrings").to_markdown
    assert to_markdown("Return a * b * c of x_t_ and <v, y>, `a_b_c`.") == (
        "Return a \\* b \\* c of x\\_t\\_ and &lt;v, y>, `a_b_c`."
    )
    assert to_markdown("Formula:\n\n    A = B * C\n\n    x_t\n\n>>> f(2)\n4") == (
        "Formula:\n\n```text\nA = B * C\n\nx_t\n```\n\n```pycon\n>>> f(2)\n4\n```"
    )


def test_docstrings_of_a_package_and_of_what_is_in_it_are_rewritten_once(tmp_path):
    (tmp_path / "made_up").mkdir()
    (tmp_path / "made_up" / "__init__.py").write_text(
        '"""Return a * b."""\n\ndef f():\n    """Return c * d."""\n'
    )
    package = griffe.load(
        "made_up", search_paths=[tmp_path], extensions=griffe.Extensions(tool("docstrings").PlainDocstrings())
    )
    assert package.docstring.value == "Return a \\* b."
    assert package["f"].docstring.value == "Return c \\* d."


def test_public_names_that_are_imported_lazily_are_found(tmp_path, monkeypatch):
    pages = tool("pages")
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    (tmp_path / "fedmf").mkdir()
    (tmp_path / "fedmf" / "plan.py").write_text("LIMIT = 3\ndef make_plan(): ...\n")
    (tmp_path / "fedmf" / "__init__.py").write_text(
        "if TYPE_CHECKING:\n    from fedmf.plan import LIMIT as LIMIT, make_plan as make_plan\n"
    )
    assert pages.public_names(tmp_path / "fedmf") == [("make_plan", "fedmf.plan.make_plan")]


def test_the_navigation_finds_modules_by_itself():
    pages = tool("pages")
    assert {"plan": "api/fedmf/plan.md"} in pages.nav_of(ROOT / "fedmf")["fedmf"]
    assert ("design", "fedmf.mechanisms.family.design") in pages.public_names(ROOT / "fedmf" / "mechanisms")
    page = pages.module_page(ROOT / "fedmf" / "mechanisms")
    assert (
        "| [`families`](families/index.md) | The families of factorizations: each file has those of one idea, with their papers. |"
        in page
    )


def test_a_documents_links_are_rewritten_for_the_site():
    titles = {"data.md": "Data", "CHANGELOG.md": "Changelog"}
    text = "[docs/data.md](docs/data.md), [CHANGELOG.md](CHANGELOG.md), [here](docs/data.md#text)"
    assert (
        tool("pages").from_root(text, titles)
        == "[Data](data.md), [Changelog](CHANGELOG.md), [here](data.md#text)"
    )
