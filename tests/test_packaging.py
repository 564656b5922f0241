"""The package: a wheel that works without the repository, and the hashed requirements, which follow pyproject.toml."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from importlib.metadata import PackageNotFoundError, distributions, requires
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("fedmf", "server", "client", "experiments")
NOT_PACKAGED = ("tests/", "docs/", "experiments/benchmark/", "experiments/reproduce/")
SMALL = ("population.epochs=1", "population.rounds_per_epoch=2", "population.cohort_size=8")


def command(*arguments: str | Path, cwd: Path) -> str:
    """Return what a command prints to stdout; the environment holds nothing of the repository."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(argument) for argument in arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def build(folder: Path) -> Path:
    """Return the wheel, built without the network from a copy: building leaves files next to the source."""
    source = folder / "source"
    for name in (*PACKAGES, "conf", "tests", "docs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for arguments in ("init --quiet", "add pyproject.toml", "commit --quiet --message=one"):
        author = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        command("git", *author, *arguments.split(), cwd=source)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-index")
    # As `python -m build` does: the wheel of the packed sources, which are in no repository.
    command(sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", folder / "packed", cwd=source)
    (packed,) = (folder / "packed").iterdir()
    command(*pip, "--no-build-isolation", "--no-deps", "--wheel-dir", folder / "dist", packed, cwd=folder)
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the scripts of a fresh environment that holds the wheel and nothing else of ours.

    The dependencies are those of the environment that runs the tests: its packages are appended to the path without
    reading its .pth files, through which an editable install of the repository would be found.
    """
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, with_pip=False, symlinks=True)
    scripts = place / "bin"
    target = command(
        scripts / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=place
    )
    site_packages = Path(target.strip())
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", scripts / "python")
    command(*pip, "install", "--quiet", "--no-index", "--no-deps", wheel, cwd=place)
    (site_packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return scripts


@pytest.mark.slow
def test_the_wheel_holds_every_module_and_every_setting_and_the_sdist_no_tests(wheel: Path) -> None:
    packaged = set(zipfile.ZipFile(wheel).namelist())
    modules = {file for package in PACKAGES for file in (ROOT / package).rglob("*.py")}
    files = {str(file.relative_to(ROOT)) for file in modules | set((ROOT / "conf").rglob("*.yaml"))}
    assert {file for file in files if not file.startswith(NOT_PACKAGED)} <= packaged
    assert not any(name.startswith(NOT_PACKAGED) for name in packaged)
    (packed,) = (wheel.parents[1] / "packed").iterdir()  # tests need tests/helpers, docs and the constraints
    with tarfile.open(packed) as file:
        assert not [name for name in file.getnames() if "tests" in Path(name).parts]


@pytest.mark.slow
def test_an_installed_wheel_works_in_a_folder_with_names_like_ours(
    wheel: Path, installed: Path, tmp_path: Path
) -> None:
    fedmf, folder = installed / "fedmf", tmp_path
    for name in (*PACKAGES, "conf"):  # a user's packages of the same names
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise RuntimeError('a package of the user')")
    for package in PACKAGES:
        found = command(
            installed / "python", "-P", "-c", f"import {package}; print({package}.__file__)", cwd=folder
        )
        assert Path(found.strip()).is_relative_to(installed.parent)
    assert command(fedmf, "--version", cwd=folder).startswith("fedmf ")
    planned = ("clients=100", "dimension=10", "cohort_size=10", "epsilon=1", "output=json")
    assert json.loads(command(fedmf, "plan", *planned, cwd=folder))["epsilon"] == pytest.approx(1)
    for seed in (1, 2):
        run = (f"run.directory=runs/{seed}", f"seed={seed}", *SMALL, "engine.workers=2", "output=json")
        assert json.loads(command(fedmf, "simulate", *run, cwd=folder))["rounds"] == 2
    noted = (folder / "runs/1/privacy.json").read_text()
    commit = command("git", "-C", wheel.parents[1] / "source", "rev-parse", "HEAD", cwd=folder).strip()
    assert re.findall(r'"git_commit": "(\w+)",\s*"git_modified": (\w+)', noted) == [(commit, "false")]
    command(fedmf, "compare", "directory=runs", cwd=folder)
    assert len((folder / "runs" / "compare.csv").read_text().splitlines()) == 2  # the seeds are one group


spec = importlib.util.spec_from_file_location("lock", ROOT / "requirements" / "lock.py")
lock = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lock)
each_python = pytest.mark.parametrize("python", lock.PYTHONS)


class Installed(dict):
    """What each package needs, as the environment of the tests has it; a package that is not in it needs nothing."""

    def __missing__(self, name):
        try:
            return requires(name) or []
        except PackageNotFoundError:
            return []


@each_python
def test_a_file_holds_what_is_needed_at_the_versions_that_were_tested(python):
    advice = "requirements/ does not follow pyproject.toml; run `make hashes` and commit what it writes"
    assert all(lock.pins()[name] == version for name, (version, _) in lock.read(python).items()), advice
    assert lock.closure(Installed(), python) == set(lock.read(python)), advice


def test_every_named_python_is_one_that_the_project_says_it_supports():
    text = (ROOT / "pyproject.toml").read_text()
    for python in lock.PYTHONS:
        assert f"Programming Language :: Python :: {python}" in text
    assert canonicalize_name(lock.CHOSEN_BY_HAND) not in lock.read(lock.PYTHONS[0])


def test_every_tested_version_installs_on_the_first_python_that_we_support():
    """pymdown-extensions 13 asks for 3.11.5: so `make setup` failed on Debian 12, which has 3.11.2."""
    installed = [one.metadata for one in distributions() if canonicalize_name(one.name) in lock.pins()]
    assert len(installed) > 90
    for one in installed:
        assert SpecifierSet(one["Requires-Python"] or "").contains("3.11.0"), one["Name"]
