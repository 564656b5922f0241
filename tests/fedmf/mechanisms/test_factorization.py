"""What a factorization rests on."""

import ast
from functools import cache
from pathlib import Path

import fedmf
from fedmf.mechanisms import factorization

ROOT = Path(fedmf.__file__).parents[1]


@cache
def imports(name):
    """The modules of the project that a module's source imports."""
    file = ROOT / f"{name.replace('.', '/')}.py"
    source = file if file.exists() else file.with_suffix("") / "__init__.py"
    found = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("fedmf"):
            found.add(node.module)
            for alias in node.names:
                below = f"{node.module}.{alias.name}"
                path = ROOT / below.replace(".", "/")
                if path.with_suffix(".py").exists() or path.is_dir():
                    found |= {below}
    return found - {"fedmf.mechanisms"}  # the face, whose names stand in files of their own


def reached(name):
    """All modules that one imports, over any number of steps."""
    seen, waiting = set(), [name]
    while waiting:
        for module in imports(waiting.pop()) - seen:
            seen.add(module)
            waiting.append(module)
    return seen


def test_a_factorization_is_a_value_that_needs_no_solver():
    below = reached(factorization.__name__)
    assert "fedmf.mechanisms.streams.protocol" in below
    assert not [name for name in below if "optimum" in name or "families" in name or name.endswith("bounds")]


def test_families_stand_below_the_door():
    for file in (ROOT / "fedmf/mechanisms/families").glob("*.py"):
        assert "fedmf.mechanisms.family" not in reached(f"fedmf.mechanisms.families.{file.stem}")


def test_the_walk_sees_the_solver_where_it_is():
    assert "fedmf.mechanisms.optimum.fixed_point" in reached("fedmf.mechanisms.bounds")
