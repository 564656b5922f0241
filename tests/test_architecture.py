"""Imports point one way: between packages, between the packages in each, and in no circle between files."""

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import version
from pathlib import Path

import pytest

from server.flower_private import VERSIONS

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("fedmf", "server", "client", "experiments")
MAY_IMPORT = {
    "fedmf": {"fedmf"},
    "server": {"server", "fedmf"},
    "client": {"client", "fedmf"},
    "experiments": set(PACKAGES),
}
KEPT_OUT = {
    "fedmf": {"torch", "flwr", "hydra", "omegaconf", "yaml", "rich", "sklearn", "matplotlib"},
    "server": {"torch", "hydra", "omegaconf", "yaml", "rich", "sklearn", "matplotlib"},
    "client": {"hydra", "omegaconf", "yaml", "rich", "matplotlib"},
    "experiments": set(),
}
# Package -> the packages below it, which it may import from. Commands and tools import from all but commands and tools.
BELOW = {
    "experiments": {
        "settings": set(),
        "run_files": {"settings"},
        "pages": {"run_files", "settings"},
        "cli": {"pages", "run_files", "settings"},
        "engines": {"run_files", "settings"},
        "session": {"engines", "pages", "run_files", "settings"},
        "deployment": {"cli", "engines", "run_files", "session", "settings"},
    },
    "fedmf.mechanisms": {"streams": set(), "optimum": {"streams"}, "families": {"optimum", "streams"}},
}
PYTHON_API = "experiments.python_api"  # `from experiments import run`: above the commands, which it calls
COMMANDS, TOOLS = (
    {"audit"},
    {"benchmark", "reproduce"},
)  # those of several files; those in the repository only


def imports(source):
    """Yield (module, names) of each import in a source, anywhere in it; names is empty for `import module`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or "", tuple(alias.name for alias in node.names)


def imported(source):
    """Return the top-level names that a module's source imports, anywhere in it."""
    return {module.split(".")[0] for module, _ in imports(source)}


@cache
def modules():
    """Return {name: source} of all modules of the project."""
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    names = [
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in files
    ]
    return {name: file.read_text() for name, file in zip(names, files, strict=True)}


@cache
def arrows(name):
    """Return the project's modules that a module imports, when it is imported itself or later."""
    return targets(name, modules()[name])


def targets(name, source):
    found = set()
    for module, names in imports(source):
        parts = {f"{module}.{part}" for part in names} & set(modules())
        found |= parts or ({module} & set(modules()))
    return found - {name}


@cache
def arrows_at_import(name):
    """Return the project's modules that a module imports while it is imported itself: not in functions, not for types."""
    body = ast.parse(modules()[name]).body
    at_once = [ast.unparse(node) for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    return targets(name, "\n".join(at_once))


def part_of(name, package):
    """Return the package in `package` that contains a module, None for a module of `package` itself."""
    inner = name.removeprefix(f"{package}.").split(".")[0]
    return inner if (ROOT.joinpath(*package.split(".")) / inner).is_dir() else None


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_one_way(package):
    for name, source in modules().items():
        if name.split(".")[0] == package:
            assert imported(source) & set(PACKAGES) <= MAY_IMPORT[package], name
            assert not imported(source) & KEPT_OUT[package], name


@pytest.mark.parametrize("package", BELOW)
def test_packages_are_known_and_import_downwards(package):
    inside = [name for name in modules() if name.startswith(f"{package}.")]
    known, below = {*BELOW[package], None}, BELOW[package]
    others = COMMANDS | TOOLS if package == "experiments" else set()
    assert {part_of(name, package) for name in inside} == known | others
    for name in inside:
        here = part_of(name, package)
        inner = {target for target in arrows(name) if target.startswith(f"{package}.")}
        parts = {part_of(target, package) for target in inner}
        if here in below:
            assert parts - ({None} if package != "experiments" else set()) <= below[here] | {here}, name
            assert "fedmf.mechanisms.family" not in inner, name  # above all
        elif package == "experiments":
            allowed = {here, "reproduce"} if here == "benchmark" else {here}
            assert not parts & (others - allowed), name
            assert None not in parts or name == PYTHON_API, name


def test_a_factorization_imports_no_solver_and_mathematics_not_the_audit():
    reached, todo = set(), ["fedmf.mechanisms.factorization"]
    while todo:
        for target in arrows(todo.pop()) - reached:
            reached.add(target)
            todo.append(target)
    assert not {name for name in reached if ".optimum" in name or ".families" in name}
    for name in modules():
        if name.startswith("fedmf.") and not name.startswith("fedmf.audit"):
            assert not any(target.startswith("fedmf.audit") for target in arrows(name)), name


def test_no_circle_of_imports():
    TopologicalSorter({name: arrows_at_import(name) for name in modules()}).prepare()  # raises CycleError


def test_flower_stays_out_of_client_training_and_mathematics_of_the_server():
    for name in ("client.training", "client.privatize", "client.models",
                 "server.optimizer", "server.state", "server.cohort"):  # fmt: skip
        assert "flwr" not in imported(modules()[name]), name


def test_configuration_ends_in_settings():
    """No OmegaConf, no Hydra, no YAML outside: what leaves settings/ is frozen and typed."""
    for name, source in modules().items():
        if part_of(name, "experiments") not in {"settings", *TOOLS}:
            assert not imported(source) & {"omegaconf", "hydra", "yaml"}, name
            assert not re.search(
                r"import_module\(\W*(omegaconf|hydra|yaml)|DictConfig|config: Any", source
            ), name


def test_the_walk_sees_a_forbidden_import():
    assert imported("def f():\n    from server.state import x\n    import torch.nn") == {"server", "torch"}
    assert "experiments.settings.schema" in arrows_at_import("experiments.session.session")
    assert "server.checkpoint" in arrows("experiments.run_files.reader")
    assert "server.checkpoint" not in arrows_at_import("experiments.run_files.reader")


def test_private_parts_of_flower_are_in_one_short_file_and_those_of_the_versions_they_were_checked_with():
    """Run the tests of engines, exchange and deployment with another version before its number is added."""
    public = ("flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.simulation")
    private = {
        name
        for name, source in modules().items()
        for module, _ in imports(source)
        if module.startswith("flwr.") and not module.startswith(public)
    }
    assert private == {"server.flower_private"}
    hidden = re.compile(r"TaskIdentity|\"_message_id")
    assert {name for name, source in modules().items() if hidden.search(source)} == private
    assert len(modules()["server.flower_private"].splitlines()) < 60
    found = version("flwr")
    assert found.startswith(VERSIONS), f"Flower {found}: server/flower_private.py was checked with {VERSIONS}"
