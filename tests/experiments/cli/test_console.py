"""The console command, run as the script that an installation makes, in folders that are not ours."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from experiments.cli import console
from experiments.cli.console import PACKAGE, USAGE

pytestmark = pytest.mark.long

ROOT = PACKAGE.parent
ENTRY = """
from experiments.cli.console import main
if __name__ == "__main__":
    sys.exit(main())
"""
EDITABLE = f"""
import sys
from importlib.machinery import PathFinder
class Finder:  # as setuptools' finder of an editable install: it is asked after the whole of sys.path
    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, [{str(ROOT)!r}]) if "." not in name else None
sys.meta_path.insert(sys.meta_path.index(PathFinder) + 1, Finder)
"""
MINE = """
import os
from pathlib import Path
from client.data import Dataset, load as load_ours
HERE = Path(__file__).parent
def load() -> Dataset:
    (HERE / f"loaded_by_{os.getpid()}").touch()
    return load_ours("digits")
"""
SMALL = ("population.epochs=1", "population.rounds_per_epoch=2", "population.cohort_size=8")
OWN = ("dataset=custom", "dataset.name=mine:load")


class Console:
    """The script `fedmf`, and a folder of the user's whose names are those of our packages."""

    def __init__(self, place: Path) -> None:
        self.script, self.folder = place / "bin" / "fedmf", place / "folder"
        self.script.parent.mkdir()
        self.script.write_text(f"#!{sys.executable}\n{EDITABLE}{ENTRY}")
        self.script.chmod(0o755)
        for name in ("experiments", "server", "client", "fedmf", "conf"):
            (self.folder / name).mkdir(parents=True)
            (self.folder / name / "__init__.py").write_text("raise RuntimeError('a package of the user')")
        (self.folder / "mine.py").write_text(MINE)
        search = f"{self.script.parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": search, "PYTHONDONTWRITEBYTECODE": "1"}
        self.environment.pop("PYTHONPATH", None)

    def __call__(self, *arguments: str, expected: int = 0) -> tuple[str, str]:
        """Return what `fedmf` with these arguments prints to stdout and stderr."""
        command = [str(self.script), *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, text=True, capture_output=True, timeout=300
        )
        assert done.returncode == expected, done.stderr
        return done.stdout, done.stderr


@pytest.fixture
def fedmf(tmp_path: Path) -> Console:
    return Console(tmp_path)


def test_help_version_and_mistakes_without_starting_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedmf", *arguments])
        return console._answer(), *capsys.readouterr()

    assert answer("--help") == answer("help", "plan") == (0, USAGE, "")
    assert answer("--version") == (0, f"fedmf {version('fedmf')}\n", "")
    assert answer() == (2, "", USAGE)
    said = "error: 'simulat' is no command of fedmf; `fedmf --help` lists all of them.\n"
    assert answer("simulat", "seed=1") == (2, "", said)
    assert max(map(len, USAGE.splitlines())) <= 80


def test_folders_of_the_users_do_not_hide_our_packages(fedmf: Console) -> None:
    out, _ = fedmf("plan", "clients=100", "dimension=10", "cohort_size=10", "epsilon=1", "output=json")
    assert '"epsilon": ' in out
    _, error = fedmf("plan", "--bogus", expected=2)
    assert error.startswith("error: --bogus is no option")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "at_least"),
    [
        (["engine.workers=2"], 2),  # the run itself and a worker
        pytest.param(["engine=ray", "engine.workers=2"], 2, marks=pytest.mark.ray),
        (["-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "seed=1,2"], 1),
    ],
)
def test_a_loader_in_the_current_directory_is_found_by_every_worker(
    fedmf: Console, settings: list[str], at_least: int
) -> None:
    _, error = fedmf("simulate", *settings, *SMALL, *OWN)
    assert len(list(fedmf.folder.glob("loaded_by_*"))) >= at_least, error


def test_the_current_directory_is_searched_only_where_pythonpath_names_it_and_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    for named in (False, True):
        monkeypatch.setenv("PYTHONPATH", f"{os.pathsep}/first{os.pathsep}{'.' * named}")
        path = ["", "/first", str(tmp_path), "/second"]
        console._look_elsewhere(path)
        assert path == ["/first", "/second", str(ROOT), *[str(tmp_path)] * named]


PLANTED = "import os\nopen(os.environ['RUN'], 'a').write(__name__ + ' ')\nraise ImportError(__name__)\n"
# What commands and libraries look for and do not find, and, before any code of ours, Python itself and workers of Ray.
NAMES = ("bcrypt", "setproctitle", "sitecustomize", "usercustomize", "pyarrow", "pydantic")


@pytest.mark.parametrize(
    "line",
    [
        "mechanisms rounds=4 families=[independent]",
        pytest.param("simulate engine.workers=2", marks=pytest.mark.slow),
        pytest.param("simulate engine=ray engine.workers=2", marks=[pytest.mark.slow, pytest.mark.ray]),
    ],
)
def test_no_file_of_the_current_directory_is_run_under_the_name_of_an_optional_import(
    fedmf: Console, tmp_path: Path, line: str
) -> None:
    run, fedmf.folder = tmp_path / "run", tmp_path / "hostile"
    fedmf.environment["RUN"] = str(run)
    fedmf.folder.mkdir()
    for name in NAMES:
        (fedmf.folder / f"{name}.py").write_text(PLANTED)
    fedmf(*line.split(), *(SMALL if "simulate" in line else ()))
    assert not run.exists(), run.read_text()
    fedmf.environment["PYTHONPATH"] = str(fedmf.folder)  # where they would be found
    fedmf("--version")
    assert "sitecustomize" in run.read_text()
