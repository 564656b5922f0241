"""The files in requirements/ hold what pyproject.toml needs, at the versions that were tested, each with a hash."""

import importlib.util
from importlib.metadata import PackageNotFoundError, metadata, requires
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
def test_every_line_of_a_file_is_a_version_with_a_hash(python):
    lines = [line for line in lock.path(python).read_text().splitlines() if not line.startswith("#")]
    assert len(lines) == len(lock.read(python)) > 90
    assert lines == sorted(lines, key=lambda line: line.partition("==")[0])


@each_python
def test_versions_are_those_that_were_tested(python):
    pins = lock.pins()
    assert {name: version for name, (version, _) in lock.read(python).items()} == {
        name: pins.get(name) for name in lock.read(python)
    }


@each_python
def test_a_file_holds_what_is_needed_and_nothing_else(python):
    advice = "requirements/ does not follow pyproject.toml; run `make hashes` and commit what it writes"
    assert lock.closure(Installed(), python) == set(lock.read(python)), advice


def test_conditions_on_the_python_and_extras_are_followed():
    """A made-up need: only where its condition holds, and with what its extra needs."""
    needs = Installed(
        {"flwr": ["a[b]; python_version >= '3.13'"], "a": ["c; extra == 'b'", "d; extra == 'e'"], "c": []}
    )
    added = lock.closure(needs, "3.13") - lock.closure(needs, "3.12")
    assert added == {"a", "c"}


def test_a_package_of_several_wheels_has_a_hash_for_each_python():
    digests = {lock.read(python)["numpy"][1] for python in lock.PYTHONS}
    assert len(digests) == len(lock.PYTHONS)


def test_every_named_python_is_one_that_the_project_says_it_supports():
    text = (ROOT / "pyproject.toml").read_text()
    for python in lock.PYTHONS:
        assert f"Programming Language :: Python :: {python}" in text
    assert canonicalize_name(lock.CHOSEN_BY_HAND) not in lock.read(lock.PYTHONS[0])


def test_every_tested_version_installs_on_the_first_python_that_we_support():
    """pymdown-extensions 13 asks for 3.11.5: so `make setup` failed on Debian 12, which has 3.11.2."""
    asked = {name: metadata(name)["Requires-Python"] or "" for name in lock.pins() if _is_installed(name)}
    assert len(asked) > 90
    assert [name for name, said in asked.items() if not SpecifierSet(said).contains("3.11.0")] == []


def _is_installed(name):
    try:
        return metadata(name) is not None
    except PackageNotFoundError:
        return False
