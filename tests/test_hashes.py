"""The files in requirements/ hold what pyproject.toml needs, at the versions that were tested, each with a hash."""

import importlib.util
from importlib.metadata import PackageNotFoundError, distributions, requires
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
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
