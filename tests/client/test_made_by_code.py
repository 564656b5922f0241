"""What is kept in the cache is of the code that made it: changed parsing code never reads what older code made."""

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import client
import small_files
from client.data import load, made

FOLDER = Path(made.__file__).parent


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDMF_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDMF_DATA_CACHE", raising=False)


def entries(tmp_path: Path) -> int:
    """Return how many folders lie in the cache."""
    found = (tmp_path / "cache" / "data").iterdir()
    return len([path for path in found if path.is_dir() and path.name != "digests"])


def test_a_change_of_a_parser_is_seen_in_what_was_parsed_before(tmp_path: Path) -> None:
    """In processes of their own, with copies of the package of which one takes every pixel for 0.25."""
    path = small_files.leaf(tmp_path / "leaf", "femnist")
    said = []
    for name, old, new in (
        ("one", "", ""),
        ("two", "rows.x[chosen]", "[[0.25] * 784 for _ in rows.x[chosen]]"),
    ):
        shutil.copytree(Path(client.__file__).parent, tmp_path / name / "client")
        parser = tmp_path / name / "client" / "data" / "femnist.py"
        assert old in parser.read_text()
        parser.write_text(parser.read_text().replace(old, new, 1))
        # No path of ours but that of the copy and of the library.
        environment = {**os.environ, "PYTHONPATH": f"{tmp_path / name}{os.pathsep}{FOLDER.parents[1]}"}
        code = (
            f"from client.data import load; print(load('femnist', path={str(path)!r}).clients[0].x[0, 0, 0])"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            cwd=tmp_path / name,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        said.append(float(done.stdout))
    assert said[0] != said[1] == 0.75
    assert entries(tmp_path) == 4


@pytest.mark.parametrize("form", ["femnist_leaf", "shakespeare_csv", "gz"])
def test_an_entry_of_other_code_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    given = small_files.settings(form, tmp_path)
    load(**given)
    count = entries(tmp_path)
    load(**given)
    assert entries(tmp_path) == count
    monkeypatch.setattr(made, "CODE", "another")
    load(**given)
    assert entries(tmp_path) == 2 * count


def test_any_change_of_a_source_changes_the_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(FOLDER, tmp_path / "data")
    held = [made.code_version(tmp_path / "data")]
    assert held == [made.CODE]
    (tmp_path / "data" / "leaf.py").write_bytes((FOLDER / "leaf.py").read_bytes()[:-1] + b" ")
    held.append(made.code_version(tmp_path / "data"))
    (tmp_path / "data" / "leaf.py").rename(tmp_path / "data" / "leag.py")
    held.append(made.code_version(tmp_path / "data"))
    monkeypatch.setattr(made, "_version", lambda library: f"{library} 0")
    held.append(made.code_version(tmp_path / "data"))
    assert len(set(held)) == len(held)


def test_all_that_parses_lies_in_the_folder_whose_sources_count() -> None:
    """Whoever moves a parser elsewhere must let the version cover it."""
    for name in (
        "femnist",
        "shakespeare",
        "leaf",
        "hub",
        "packed",
        "by_user_npz",
        "sqlite_index",
        "text",
        "reading",
    ):
        module = importlib.import_module(f"client.data.{name}")
        assert Path(str(module.__file__)).parent == FOLDER
