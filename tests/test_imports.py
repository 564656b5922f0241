"""Imports: what a start may not load; where a user's own code is looked for, and what is reported of an error in it."""

import json
import subprocess
import sys

import pytest
import torch
from omegaconf import OmegaConf

import users_own
from client.imports import import_path, reason
from fedmf.errors import DataError, SettingError
from runs import ROOT, STATE

HEAVY = ("torch", "flwr", "grpc", "scipy", "sklearn", "pandas", "matplotlib", "rich", "ray", "dp_accounting")
NEVER = (
    "scipy.signal",
    "scipy.stats",
    "sklearn",
    "pandas",
    "sympy",
    "ray",
    "dp_accounting",
    "sqlalchemy",  # of Flower's SuperLink, which engine=ray alone takes something from
)  # 3 s of CPU together
# One process for all: each step is given what is loaded after it.
PROGRAM = """
import json, sys
loaded = {}
def note(step):
    loaded[step] = sorted(sys.modules)
import experiments.simulate
note("the command before it knows what is asked")
import experiments.plan
note("a plan")
from experiments.settings.compose import compose
from experiments.settings.schema import Settings
settings = compose("config", sys.argv[1:], Settings)
from experiments.engines.engine import resident_client_app
from client.data import load
resident_client_app(settings, load("digits").public)
note("a worker process")
from experiments.session.session import simulate
from pathlib import Path
simulate(settings, Path(settings.run.directory))
note("a whole run")
json.dump(loaded, open("loaded.json", "w"))
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """{step: what is loaded after it}."""
    folder = tmp_path_factory.mktemp("imports")
    options = ("run.directory=r", "population.cohort_size=3", "population.rounds_per_epoch=2", "optimizer.momentum=0.9",
               "population.epochs=2", "privacy.epsilon=null", "privacy.noise_multiplier=1")  # fmt: skip
    subprocess.run(
        [sys.executable, "-c", PROGRAM, *options],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "", **STATE},
        capture_output=True,
        check=True,
    )
    assert (folder / "r/report.html").exists()
    return json.loads((folder / "loaded.json").read_text())


@pytest.mark.parametrize(
    ("step", "kept_out"),
    [
        ("the command before it knows what is asked", HEAVY),
        ("a plan", ("torch", "flwr", "matplotlib", "sklearn", "pandas", "pyarrow", "rich.progress")),
        ("a worker process", (*NEVER, "scipy.optimize", "matplotlib", "numba")),
        ("a whole run", NEVER),
    ],
)
def test_a_start_loads_nothing_that_it_has_no_need_of(loaded, step, kept_out):
    assert not set(kept_out) & set(loaded[step])


def test_what_is_kept_out_of_a_start_is_there_to_be_loaded(loaded):
    assert {"torch", "flwr"} <= set(loaded["a worker process"])
    assert {"scipy.special", "matplotlib"} <= set(loaded["a whole run"])


# a user's own code


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("", None),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("def f(:", "SyntaxError"),
        ("import nothing_at_all", "ModuleNotFoundError"),
    ],
)
def test_the_current_directory_is_looked_in_at_that_import_alone(tmp_path, monkeypatch, source, error):
    (tmp_path / "own_code_here.py").write_text(
        f"import own_sibling_here\nVALUE = own_sibling_here.VALUE\n{source}\n"
    )
    (tmp_path / "own_sibling_here.py").write_text("VALUE = 3\n")
    (tmp_path / "own_other_here.py").write_text("")
    path = [entry for entry in sys.path if entry]
    monkeypatch.setattr(sys, "path", [*path])
    monkeypatch.chdir(tmp_path)
    for name in ("own_code_here", "own_sibling_here"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    if error is None:
        assert import_path("own_code_here:VALUE", "model") == 3
    else:
        with pytest.raises(
            SettingError, match=f"model is 'own_code_here:VALUE', which cannot be .*: {error}"
        ):
            import_path("own_code_here:VALUE", "model")
    assert sys.path == path
    with pytest.raises(ModuleNotFoundError):
        __import__("own_other_here")


def caught(function, *arguments):
    with pytest.raises(Exception) as info:
        function(*arguments)
    return info.value


def test_a_reason_names_the_users_own_line_and_not_a_librarys():
    said = reason(caught(users_own.WrongInput((8, 8), 10), torch.zeros(2, 8, 8)))
    line = users_own.WrongInput.forward.__code__.co_firstlineno + 1
    assert said.startswith("RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x63 and 64x10) (")
    assert said.endswith(f"users_own.py:{line})")
    assert f"({__file__}:" in reason(caught(lambda: OmegaConf.create({"a": "${b}"}).a))
    assert ".py:" not in reason(caught(torch.ones(2).reshape, 3).with_traceback(None))


class Mute(Exception):
    """An exception that cannot be made a text."""

    def __str__(self):
        raise SystemExit


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (DataError("There is no file."), "There is no file"),
        (ValueError("There is none."), "ValueError: There is none"),
        (ValueError("a\n\x1b[31m" + "b" * 1000), "ValueError: a [31m" + "b" * 294 + "..."),
        (Mute(), "Mute"),
    ],
)
def test_whatever_an_exception_holds_is_one_short_printable_line(error, said):
    assert reason(error) == said
