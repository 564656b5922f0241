import logging
import threading

import numpy as np
import pytest

from fedmf.mechanisms import cache, design, momentum, prefix_sum
from fedmf.mechanisms.cache import cached


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
    ],
)
def test_other_settings_are_other_results(directory, settings):
    compute = Counting()
    cached("kind", {"size": 3}, compute)
    cached("kind", settings, compute)
    assert compute.calls == 2


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
