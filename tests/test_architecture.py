"""Imports point one way: experiments -> {server, client} -> fedmf; server and client never meet."""

import ast
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
    "fedmf": {"torch", "flwr", "hydra", "omegaconf", "rich", "sklearn", "matplotlib"},
    "server": {"torch", "hydra", "omegaconf", "rich", "sklearn", "matplotlib"},
    "client": {"hydra", "omegaconf", "rich", "matplotlib"},
    "experiments": set(),
}


def imported(source):
    """Top-level names that a module's source imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names.add((node.module or "").split(".")[0])
    return names


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_one_way(package):
    for file in sorted((ROOT / package).rglob("*.py")):
        names = imported(file.read_text())
        assert names & set(PACKAGES) <= MAY_IMPORT[package], file
        assert not names & KEPT_OUT[package], file


def test_flower_stays_out_of_client_training_and_mathematics_of_the_server():
    for file in ("client/training.py", "client/privatize.py", "client/models.py", "server/aggregation.py",
                 "server/optimizer.py", "server/state.py", "server/cohort.py"):  # fmt: skip
        assert "flwr" not in imported((ROOT / file).read_text()), file


def test_the_walk_sees_a_forbidden_import():
    assert imported("def f():\n    from server.state import x\n    import torch.nn") == {"server", "torch"}


def test_every_yaml_file_parses():
    for file in (ROOT / "conf").rglob("*.yaml"):
        yaml.safe_load(file.read_text())
