"""The pages that mkdocs does not find in docs/: the root's documents, all settings, and one page for each public module.

A hook of mkdocs (mkdocs.yml names it). No module is listed by hand: a file that is added or moved changes the site.
"""

import ast
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # the project is imported from the checkout that contains this file

# ruff: noqa: E402
from experiments.settings.reference import RUN, SETTINGS, Setting, reference

PACKAGES = ("fedmf", "server", "client")
DOOR = (ROOT / "experiments/python_api.py",)  # `from experiments import run`
FROM_ROOT = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "SECURITY.md": "SECURITY.md",
}

NavItem = dict[str, Any]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the section API of the navigation."""
    section = next(item for item in config.nav or [] if "API" in item)
    door = {"run": [{module.stem: page_of(module)} for module in DOOR]}
    section["API"] = [{"Overview": "api/index.md"}, door, *(nav_of(ROOT / name) for name in PACKAGES)]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    titles = titles_of(config.nav or [])
    for source, page in FROM_ROOT.items():
        files.append(File.generated(config, page, content=from_root((ROOT / source).read_text(), titles)))
    files.append(File.generated(config, "settings.md", content=settings_page()))
    files.append(File.generated(config, "api/index.md", content=overview()))
    for module in (*DOOR, *(module for name in PACKAGES for module in modules_below(ROOT / name))):
        files.append(File.generated(config, page_of(module), content=module_page(module)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page whose links into the root of the repository lead to the pages made from there."""
    for source, page in FROM_ROOT.items():
        markdown = markdown.replace(f"](../{source}", f"]({page}")
    return markdown


def on_post_page(output: str, **_: Any) -> str:
    """Return a page whose search box has a name for those who hear the page."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"', 1)


def from_root(markdown: str, titles: dict[str, str]) -> str:
    """Return a document of the root with its links as they are from within docs/.

    A link whose text is a path, which tells a reader of the repository where to look, gets the page's title.
    """
    markdown = re.sub(r"\]\(docs/", "](", markdown).replace("](README.md", "](index.md")
    return re.sub(r"\[(?:docs/)?(\w+\.md)\]\(\1\)", lambda link: f"[{titles[link[1]]}]({link[1]})", markdown)


def titles_of(nav: list[Any]) -> dict[str, str]:
    """Return the title of each page that the navigation names, by its address."""
    titles: dict[str, str] = {}
    for item in nav:
        for title, page in item.items() if isinstance(item, dict) else ():
            titles |= {page: title} if isinstance(page, str) else titles_of(page)
    return titles


SETTINGS_PAGE = """\
# Settings

Every key of every command. A setting is given as `key=value`, a choice of a group as `group=choice`, a list as
`"key=[a,b]"`; `null` is the value of nothing. `fedmf COMMAND --help` prints the same, `fedmf simulate --help model` one group and
`fedmf simulate --help model.hidden` one key. `fedmf simulate -m seed=1,2,3` is a sweep, and `+experiment=NAME` takes the settings of
a published run, a file of `conf/experiment`.
"""


def settings_page() -> str:
    """Return the page of all settings, from the classes of the commands' settings."""
    parts = [SETTINGS_PAGE]
    for command in SETTINGS:
        known = reference(command)
        parts.append(f"## {command}\n")
        if alone := [item for item in known.settings if not item.group]:
            parts.append(settings_table(alone, choices=()))
        for name, group in known.groups.items():
            if group.choices and command != RUN:
                parts.append(f"`{name}` ({group.default}) and its keys: those of [{RUN}](#{RUN}-{name}).\n")
                continue
            about = group.about[:1].upper() + group.about[1:]
            parts.append(f"### {command}: {name} {{ #{command}-{name} }}\n\n{about}.\n")
            parts += [
                f"- `{name}={choice}`{' (default)' if choice == group.default else ''}: {said}"
                for choice, said in group.choices.items()
            ]
            rows = [item for item in known.settings if item.group == name]
            parts.append(("\n" if group.choices else "") + settings_table(rows, group.choices))
    return "\n".join(parts)


def settings_table(rows: Iterable[Setting], choices: Iterable[str]) -> str:
    """Return settings as a table of Markdown; `choices` are those of their group."""
    heading = ["Key", "Meaning", "Type", "Default", *(["With"] if choices else [])]
    lines = [heading, ["---"] * len(heading)]
    for item in rows:
        kind = item.type + (f" ({', '.join(f'`{name}`' for name in item.choices)})" if item.choices else "")
        of = [", ".join(item.of) or "all"] if choices else []
        lines.append([f"`{item.key}`", item.meaning, kind, f"`{item.default}`", *of])
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def public_children(package: Path) -> list[Path]:
    """Return the public modules of a package and then its public sub-packages, each by name."""
    modules = sorted(file for file in package.glob("*.py") if not file.name.startswith("_"))
    return modules + sorted(folder.parent for folder in package.glob("[!_]*/__init__.py"))


def modules_below(package: Path) -> list[Path]:
    """Return a package and all public modules and packages below it."""
    below = [package]
    for child in public_children(package):
        below += modules_below(child) if child.is_dir() else [child]
    return below


def dotted(module: Path) -> str:
    """Return the import path of a module's file or a package's folder."""
    return ".".join(module.relative_to(ROOT).with_suffix("").parts)


def page_of(module: Path) -> str:
    """Return the address of a module's page inside docs/."""
    path = dotted(module).replace(".", "/")
    return f"api/{path}/index.md" if module.is_dir() else f"api/{path}.md"


def nav_of(package: Path) -> NavItem:
    """Return a package's section of the navigation: its own page first."""
    items: list[str | NavItem] = [page_of(package)]
    for child in public_children(package):
        items.append(nav_of(child) if child.is_dir() else {child.stem: page_of(child)})
    return {package.name: items}


def module_page(module: Path) -> str:
    """Return the Markdown of a module's page; that of a package lists its public names and its modules."""
    name = dotted(module)
    start = f"---\nsearch:\n  boost: 0.2\n---\n# {name}\n\n::: {name}\n"  # found after what the handbook has
    if not module.is_dir():
        return start
    # Public names have their places on their modules' pages: here they are only listed, but for those that are defined here.
    page = start
    defined = [node.name for node in parsed(module).body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    if all(one.startswith("_") for one in defined):
        page += "    options:\n      members: false\n"
    if names := public_names(module):
        page += "\n## Public names\n\n" + ", ".join(f"[`{one}`][{path}]" for one, path in names) + "\n"
    return page + "\n## Modules\n\n" + table(public_children(module), start=module)


def overview() -> str:
    """Return the Markdown of the first page of the API."""
    return (
        "# API\n\nMade from the docstrings of the three packages that a program of your own can import. Imports point "
        "one way: `server` and `client` use `fedmf` and never each other.\n\n"
        + table([ROOT / name for name in PACKAGES], start=None)
        + "\nA whole run from Python is one call, `from experiments import run`:\n\n"
        + table(list(DOOR), start=None)
    )


def table(modules: list[Path], start: Path | None) -> str:
    """Return a table of modules with the first sentence of each; links are relative to the page of `start`."""
    here = Path(page_of(start)).parent if start else Path("api")
    rows = [
        f"| [`{module.stem}`]({Path(page_of(module)).relative_to(here)}) | {first_sentence(module)} |\n"
        for module in modules
    ]
    return "| | |\n|---|---|\n" + "".join(rows)


def first_sentence(module: Path) -> str:
    """Return the first sentence of a module's docstring, fit for a cell of a table."""
    text = " ".join((ast.get_docstring(parsed(module)) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[.!?]) (?=[A-Z])", text)[0].replace("|", "\\|")


def public_names(package: Path) -> list[tuple[str, str]]:
    """Return (name, import path of where it is defined) of each public function and class of a package."""
    tree = parsed(package)
    listed = next((node.value for node in tree.body if is_all(node)), None)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    exported = [alias.name for node in imports for alias in node.names if alias.asname]  # see fedmf/lazy.py
    names = ast.literal_eval(listed) if listed else exported
    found = [(name, definition(package, name)) for name in names]
    return [(name, path) for name, path in found if path]


def is_all(node: ast.stmt) -> bool:
    """Return whether a statement assigns `__all__`."""
    return isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets
    )


def definition(module: Path, name: str) -> str | None:
    """Return the import path where a function or class that `module` has is defined, None for anything else.

    Imports are looked for in the whole file: a package may import lazily and name its imports for type checkers only.
    """
    tree = parsed(module)
    if any(isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name for node in tree.body):
        return f"{dotted(module)}.{name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return definition(located(node.module or ""), alias.name)
    return None


def located(path: str) -> Path:
    """Return the file or the folder of the module at an import path."""
    place = ROOT / path.replace(".", "/")
    return place if place.is_dir() else place.with_suffix(".py")


def parsed(module: Path) -> ast.Module:
    """Return the syntax tree of a module's file or of a package's `__init__`."""
    return ast.parse((module / "__init__.py" if module.is_dir() else module).read_text())
