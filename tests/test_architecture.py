"""Imports point one way: between packages, between the rooms of each, and in no circle between files."""

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

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
COMMANDS = {
    "audit",
}  # those that need several files
TOOLS = {
    "benchmark": {"reproduce"},
    "reproduce": set(),
}  # in the repository only; tool -> tools that it may import
# Room -> the rooms that it may import from: those below it, which know less.
EXPERIMENTS = {
    "settings": set(),
    "run_files": {"settings"},
    "pages": {"run_files", "settings"},
    "cli": {"pages", "run_files", "settings"},
    "engines": {"run_files", "settings"},
    "session": {"engines", "pages", "run_files", "settings"},
    "deployment": {"cli", "engines", "run_files", "session", "settings"},
}
MECHANISMS = {
    "streams": set(),
    "optimum": {"streams"},
    "families": {"optimum", "streams"},
}

DOORS = {"fedmf.mechanisms.family", "fedmf.mechanisms.bounds"}  # above all rooms


def imports(source):
    """Yield (module, names) of each import in a source, anywhere in it; names is empty for `import module`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or "", tuple(alias.name for alias in node.names)


def imported(source):
    """Top-level names that a module's source imports, anywhere in it."""
    return {module.split(".")[0] for module, _ in imports(source)}


def name_of(file):
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def modules():
    """{name: file} of all modules of the project."""
    return {name_of(file): file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))}


@cache
def arrows(name):
    """The project's modules that a module imports when it is imported itself or later."""
    found = set()
    for module, names in imports(modules()[name].read_text()):
        parts = {f"{module}.{part}" for part in names} & set(modules())
        found |= parts or ({module} & set(modules()))
    return found - {name}


def room(name, package):
    """The room of a package in which a module lies, or None for what lies in the package itself."""
    inner = name.removeprefix(f"{package}.").split(".")[0]
    return inner if (ROOT.joinpath(*package.split(".")) / inner).is_dir() else None


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_one_way(package):
    for file in sorted((ROOT / package).rglob("*.py")):
        names = imported(file.read_text())
        assert names & set(PACKAGES) <= MAY_IMPORT[package], file
        assert not names & KEPT_OUT[package], file


def test_rooms_of_experiments_are_known_and_import_downwards():
    inside = [name for name in modules() if name.startswith("experiments.")]
    assert {room(name, "experiments") for name in inside} == {*EXPERIMENTS, *COMMANDS, *TOOLS, None}
    for name in inside:
        here = room(name, "experiments")
        targets = {
            room(target, "experiments") for target in arrows(name) if target.startswith("experiments.")
        }
        if here in EXPERIMENTS:
            assert targets <= EXPERIMENTS[here] | {here}, name
        else:  # a command: everything but other commands, and nothing that is not installed
            assert not targets & ((COMMANDS | set(TOOLS)) - {here} - TOOLS.get(here, set())), name
            assert None not in targets, name


def test_rooms_of_mechanisms_import_downwards():
    """families over optimum over streams; the files between them hold values and protocols."""
    inside = [name for name in modules() if name.startswith("fedmf.mechanisms.")]
    assert {room(name, "fedmf.mechanisms") for name in inside} == {*MECHANISMS, None}
    for name in inside:
        here = room(name, "fedmf.mechanisms")
        if here is not None:
            inner = {target for target in arrows(name) if target.startswith("fedmf.mechanisms.")}
            rooms = {room(target, "fedmf.mechanisms") for target in inner} - {None}
            assert rooms <= MECHANISMS[here] | {here}, name
            assert not inner & DOORS, name


def test_a_factorization_imports_no_solver():
    reached, todo = set(), ["fedmf.mechanisms.factorization"]
    while todo:
        for target in arrows(todo.pop()) - reached:
            reached.add(target)
            todo.append(target)
    assert not {name for name in reached if ".optimum" in name or ".families" in name}


def test_nothing_in_fedmf_hangs_on_the_audit():
    for name in modules():
        if name.startswith("fedmf.") and not name.startswith("fedmf.audit"):
            assert not any(target.startswith("fedmf.audit") for target in arrows(name)), name


def test_no_circle_of_imports():
    graph = {name: {target for target in arrows(name) if at_import(name, target)} for name in modules()}
    TopologicalSorter(graph).prepare()  # raises CycleError


def at_import(name, target):
    """Whether a module imports another while it is imported itself: not inside a function, not for types alone."""
    return target in loaded_with(name)


@cache
def loaded_with(name):
    """The names of what the statements of a module import at once: modules, and what is taken from them."""
    return {
        found
        for node in ast.parse(modules()[name].read_text()).body
        if isinstance(node, ast.ImportFrom | ast.Import)
        for module, parts in imports(ast.unparse(node))
        for found in (module, *(f"{module}.{part}" for part in parts))
    }


def test_flower_stays_out_of_client_training_and_mathematics_of_the_server():
    for file in ("client/training.py", "client/privatize.py", "client/models.py",
                 "server/optimizer.py", "server/state.py", "server/cohort.py"):  # fmt: skip
        assert "flwr" not in imported((ROOT / file).read_text()), file


def test_configuration_ends_in_settings():
    """No OmegaConf, no Hydra, no YAML outside: what leaves settings/ is frozen and typed."""
    for name, file in modules().items():
        if room(name, "experiments") not in {"settings", *TOOLS}:
            source = file.read_text()
            assert not imported(source) & {"omegaconf", "hydra", "yaml"}, name
            assert not re.search(r"import_module\(\W*(omegaconf|hydra|yaml)", source), name
            assert "DictConfig" not in source, name
            assert "config: Any" not in source, name


def test_the_walk_sees_a_forbidden_import():
    assert imported("def f():\n    from server.state import x\n    import torch.nn") == {"server", "torch"}
    assert "experiments.settings.schema" in arrows("experiments.session.session")
    assert at_import("experiments.session.session", "experiments.settings.schema")
    assert not at_import("experiments.run_files.reader", "server.checkpoint")


def test_every_yaml_file_parses():
    for file in (ROOT / "conf").rglob("*.yaml"):
        yaml.safe_load(file.read_text())


def test_private_parts_of_flower_are_named_in_two_files_and_checked_for_this_version():
    """Look at both files before changing the version numbers: ids of in-process messages, an upload that was lost."""
    public = ("flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.simulation")
    private = {
        str(file.relative_to(ROOT)): module
        for file in modules().values()
        for module, _ in imports(file.read_text())
        if module.startswith("flwr.") and not module.startswith(public)
    }
    assert set(private) == {"experiments/engines/grid.py", "server/exchange.py"}
    assert version("flwr").startswith(("1.41.", "1.42."))
