import ast
import logging
import shutil
import threading

import numpy as np
import pytest

import zip_heads
from fedmf.mechanisms import cache, design, momentum, of_run, prefix_sum
from fedmf.mechanisms.cache import cached
from fedmf.mechanisms.optimum.fixed_point import certified


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMF_CACHE", str(tmp_path / "results"))
    return tmp_path / "results"


class Counting:
    """A computation that counts how often it runs."""

    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return {"value": np.arange(self.calls)}


def test_a_result_is_computed_once(directory):
    compute = Counting()
    first = cached("kind", {"size": 3}, compute)
    second = cached("kind", {"size": 3}, compute)
    assert compute.calls == 1
    np.testing.assert_array_equal(first["value"], second["value"])
    assert [file.suffix for file in directory.iterdir()] == [".npz"]


@pytest.mark.parametrize(
    "settings",
    [
        {"size": 4},
        {"size": None},
        {"size": 3, "other": 1},
        {"size": prefix_sum(3)},
        {"size": momentum(3, 0.1)},
        {"size": momentum(3, 0.1 + 1e-16)},
        {"size": momentum(3, 0.1, (1, 1, 1))},
        {"size": momentum(3, 0.1, (1, 1, 0.5))},
        *({"size": workload} for workload in of_run(3, 3, 0.1)),
        {"size": certified(prefix_sum(3))},
        {"size": np.ones(3)},
    ],
)
def test_other_settings_are_other_results(directory, settings):
    compute = Counting()
    cached("kind", {"size": 3}, compute)
    cached("kind", settings, compute)
    assert compute.calls == 2


def test_every_field_of_a_workload_makes_another_result(directory):
    """A key that left out the later rounds gave every epoch of a run the design of the first."""
    compute = Counting()
    designs = [
        {"size": workload} for workload in (*of_run(3, 3, 0.1), *of_run(3, 2, 0.2), *of_run(2, 2, 0.1))
    ]
    for settings in designs * 2:
        cached("kind", settings, compute)
    assert compute.calls == len(designs)


def test_another_kind_or_code_version_is_another_result(directory, monkeypatch):
    compute = Counting()
    cached("kind", {}, compute)
    cached("other", {}, compute)
    monkeypatch.setattr(cache, "code_version", lambda package: "changed")
    cached("kind", {}, compute)
    assert compute.calls == 3


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04 cut short"])
def test_a_corrupt_file_is_computed_again_with_a_warning(directory, caplog, content):
    compute = Counting()
    cached("kind", {}, compute)
    (file,) = directory.iterdir()
    file.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        cached("kind", {}, compute)
    assert compute.calls == 2
    assert "computed again" in caplog.text
    cached("kind", {}, compute)
    assert compute.calls == 2


def test_a_flipped_byte_is_noticed(directory, caplog):
    cached("kind", {}, lambda: {"value": np.ones(1000)})
    (file,) = directory.iterdir()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        result = cached("kind", {}, lambda: {"value": np.ones(1000)})
    np.testing.assert_array_equal(result["value"], 1)
    assert "computed again" in caplog.text


@pytest.mark.parametrize("head", zip_heads.HEADS)
def test_a_damaged_head_is_computed_again_with_a_warning(directory, caplog, head):
    compute = Counting()
    cached("kind", {}, compute)
    (file,) = directory.iterdir()
    file.write_bytes(zip_heads.flipped(file.read_bytes(), head))
    with caplog.at_level(logging.WARNING):
        cached("kind", {}, compute)
    assert compute.calls == 2
    assert "computed again" in caplog.text


def test_a_directory_that_cannot_be_written_only_logs(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FEDMF_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        assert cached("kind", {}, Counting())["value"].shape == (1,)
    assert "cannot keep" in caplog.text


def test_a_write_that_fails_leaves_no_file(directory, monkeypatch, caplog):
    def full(*arguments, **keywords):
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez", full)
    with caplog.at_level(logging.WARNING):
        cached("kind", {}, Counting())
    assert "no space left" in caplog.text
    assert list(directory.iterdir()) == []


def test_many_writers_leave_one_whole_file(directory):
    threads = [threading.Thread(target=cached, args=("kind", {}, Counting())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(directory.iterdir())) == 1
    assert cached("kind", {}, Counting())["value"].shape == (1,)


def test_without_the_variable_results_lie_in_the_home_directory(monkeypatch, tmp_path):
    monkeypatch.delenv("FEDMF_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.directory() == tmp_path / ".cache" / "fedmf"


def test_designs_come_back_equal(directory):
    first, second = design("optimal", prefix_sum(20)), design("optimal", prefix_sum(20))
    assert first.fingerprint == second.fingerprint
    assert first.seconds == second.seconds
    np.testing.assert_array_equal(first.per_round_error, second.per_round_error)


def rooms():
    """Every room of the package, the package's own folder among them."""
    return sorted({file.parent.relative_to(cache.PACKAGE) for file in cache.PACKAGE.rglob("*.py")})


def test_the_rooms_are_seen():
    assert {str(room) for room in rooms()} == {".", "families", "optimum", "streams"}


@pytest.mark.parametrize("room", rooms(), ids=str)
def test_a_change_in_any_room_changes_the_code_version(tmp_path, room):
    before, after = tmp_path / "before", tmp_path / "after"
    for copy in (before, after):
        shutil.copytree(cache.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    assert cache.code_version(before) == cache.code_version(after)
    changed = max((after / room).glob("*.py"), key=lambda file: file.stat().st_size)
    changed.write_text(changed.read_text() + "# changed\n")
    cache.code_version.cache_clear()
    assert cache.code_version(before) != cache.code_version(after)


@pytest.mark.parametrize("library", cache.LIBRARIES)
def test_another_version_of_the_libraries_is_another_code_version(monkeypatch, library):
    before = cache.code_version.__wrapped__(cache.PACKAGE)
    installed = cache.version
    monkeypatch.setattr(cache, "version", lambda name: "0.1" if name == library else installed(name))
    assert cache.code_version.__wrapped__(cache.PACKAGE) != before


def test_all_that_decides_a_table_lies_within_the_package():
    """Beside it only checks, choices and errors, which change no number, what `noise` draws, which no table has, and numba.

    Whether numba compiles a loop changes a table by rounding at most.
    """
    outside = {
        "fedmf.compiling",
        "fedmf.checks",
        "fedmf.choices",
        "fedmf.errors",
        "fedmf.mechanisms",
        "fedmf.normals",
        "fedmf.randomness",
    }
    for file in cache.PACKAGE.rglob("*.py"):
        names = {
            node.module
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.ImportFrom) and node.module.startswith("fedmf")
        }
        others = {name for name in names if not name.startswith("fedmf.mechanisms")}
        assert others <= outside, file
        assert "fedmf.randomness" not in others or file.name == "noise.py"
        assert "fedmf.compiling" not in others or file.name == "smoother.py"


def test_a_result_that_was_changed_on_disk_is_computed_again(directory, caplog):
    """A sensitivity read back must be the one computed: noise would be too small otherwise."""
    honest = design("optimal", prefix_sum(20))
    file = next(directory.glob("optimal-*.npz"))
    with np.load(file) as stored:
        arrays = dict(stored)
    np.savez(file, **{**arrays, "sensitivity": np.array(1e-3)})
    assert design("optimal", prefix_sum(20)).sensitivity == honest.sensitivity
    assert "is computed again" in caplog.text


@pytest.mark.parametrize("arrays", [{}, {"digest": np.array("x")}, {"sensitivity": np.array(1.0)}])
def test_a_file_that_lacks_arrays_is_computed_again(directory, arrays):
    honest = design("optimal", prefix_sum(20))
    np.savez(next(directory.glob("optimal-*.npz")), **arrays)
    assert design("optimal", prefix_sum(20)).sensitivity == honest.sensitivity


def test_a_single_array_in_place_of_a_file_is_computed_again(directory):
    honest = design("optimal", prefix_sum(20))
    file = next(directory.glob("optimal-*.npz"))
    with file.open("wb") as stream:
        np.save(stream, np.zeros(3))
    assert design("optimal", prefix_sum(20)).sensitivity == honest.sensitivity
