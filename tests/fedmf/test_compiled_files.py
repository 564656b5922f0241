"""Compiled code on disk: it saves compiling, and nothing that becomes of its files or their disk breaks a computation."""

import importlib.util
import logging
import resource
import shutil
import struct
import sys
from contextlib import contextmanager

import numpy as np
import pytest

from client.privatize import privatize
from fedmf import compiling
from fedmf.randomness import PublicSeed, SecretKey
from fedmf.updates import kernels
from fedmf.updates.rotation import Rotation
from fedmf.updates.wire import Bounds

pytestmark = pytest.mark.skipif(not compiling.available(), reason="numba, the extra fast, is not installed")

SOURCE = """
from constants import SEVEN
from fedmf.compiling import compiled

@compiled
def inner(x):
    return SEVEN * x

@compiled
def outer(x):
    return inner(x) + 1
"""


@pytest.fixture
def place(monkeypatch, tmp_path):
    """An empty folder for compiled code, and a process that has warned of nothing."""
    import numba

    from fedmf import compiled_files

    (tmp_path / "code.py").write_text(SOURCE)
    (tmp_path / "constants.py").write_text("SEVEN = 7")
    folder = tmp_path / "compiled"
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(folder))
    monkeypatch.setattr(compiled_files, "_said", set())
    return folder


def imported(place):
    """The module as a process has it that imports it first."""
    found = {}
    for name in ("constants", "code"):
        spec = importlib.util.spec_from_file_location(name, place.parent / f"{name}.py")
        found[name] = importlib.util.module_from_spec(spec)
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, "constants", found["constants"])
            patch.setattr(
                sys, "dont_write_bytecode", True
            )  # two versions of one second and length would share it
            spec.loader.exec_module(found[name])
    return found["code"]


def files(place):
    return [path for path in place.rglob("*") if path.is_file()]


def loaded(function):
    """Whether every signature of a compiled function came from the disk."""
    assert function.signatures
    return not function.stats.cache_misses


def test_what_one_process_compiles_another_loads_and_numba_is_called_as_before(place):
    first = imported(place)
    assert first.outer(1) == 8
    assert first.outer(1.5) == 11.5
    assert not loaded(first.outer)
    assert len(files(place)) == 4  # two signatures of two functions
    second = imported(place)
    assert (second.outer(1), second.outer(1.5)) == (8, 11.5)
    assert loaded(second.outer)
    assert type(second.outer).__name__ == "CPUDispatcher"  # nothing of ours is in a call
    assert second.outer(np.float32(0.5)) == 4.5  # compiled beside what is kept
    assert not loaded(second.outer)
    third = imported(place)
    assert (third.outer(1), third.outer(np.float32(0.5))) == (8, 4.5)
    assert loaded(third.outer)


def test_code_whose_source_or_constants_changed_is_compiled_again(place):
    """What a function calls is compiled in, and so are constants: those of another file, which numba does not look at, as well."""
    assert imported(place).outer(1) == 8
    (place.parent / "constants.py").write_text("SEVEN = 77")
    other = imported(place)
    assert other.outer(1) == 78  # what calls it first: nothing of its own has changed
    assert other.inner(1) == 77
    assert not loaded(other.inner)
    (place.parent / "code.py").write_text(SOURCE.replace("SEVEN * x", "SEVEN - x"))
    assert imported(place).outer(1) == 77
    assert len(files(place)) == 2  # what cannot be used any more is replaced


def test_a_called_function_of_another_file_that_changed_is_compiled_in_anew(place):
    """Of equal size and time, as in an image whose files have one time: numba itself would load what called it."""
    import os

    calling = "from constants import seven\nfrom fedmf.compiling import compiled\n\n@compiled\ndef outer(x):\n    return seven(x) + 1\n"
    called = "from fedmf.compiling import compiled\n\n@compiled\ndef seven(x):\n    return 7 * x\n"
    (place.parent / "code.py").write_text(calling)
    for text, result in ((called, 8), (called.replace("7", "9"), 10)):
        (place.parent / "constants.py").write_text(text)
        for name in ("code", "constants"):
            os.utime(place.parent / f"{name}.py", (1e9, 1e9))
        assert imported(place).outer(1) == result


DAMAGES = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "zeros": lambda content: bytes(len(content)),
    "hole": lambda content: content[:4096] + bytes(4096) + content[8192:],
    "bit": lambda content: content[:9000] + bytes([content[9000] ^ 1]) + content[9001:],
    "text": lambda content: b"no code at all",
}


@contextmanager
def full_disk():
    """Let no file grow beyond 1000 bytes: writing fails as on a full disk, after some of it was written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_code_is_never_run_and_is_replaced_with_one_warning(place, damage, caplog):
    imported(place).outer(1)
    for path in files(place):
        path.write_bytes(DAMAGES[damage](path.read_bytes()))
    again = imported(place)
    assert again.outer(1) == 8
    assert not loaded(again.outer)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    for said in (str(place), "is compiled anew and replaced", "delete that folder", "NUMBA_CACHE_DIR"):
        assert said in caplog.text
    mended = imported(place)
    assert mended.outer(1) == 8
    assert loaded(mended.outer)
    assert len(caplog.records) == 1


def test_code_whose_numbers_were_damaged_does_not_compute_with_them(place, caplog):
    """It would load and run, unlike most of what is damaged."""
    assert imported(place).inner(1.5) == 10.5
    (path,) = files(place)
    content, seven, eight = path.read_bytes(), struct.pack("<d", 7.0), struct.pack("<d", 8.0)
    assert seven in content
    path.write_bytes(content.replace(seven, eight))
    assert imported(place).inner(1.5) == 10.5
    assert "is damaged" in caplog.text


def test_a_full_disk_compiles_without_keeping_with_one_warning(place, caplog):
    functions = imported(place)
    with full_disk():
        results = [functions.outer(x) for x in (1, 1.5, 2)]
    assert results == [8, 11.5, 15]
    assert files(place) == []  # no half of a file either
    assert len(caplog.records) == 1
    for said in (str(place), "cannot be kept", "File too large", "Make room", "NUMBA_CACHE_DIR"):
        assert said in caplog.text


def test_a_folder_that_cannot_be_used_compiles_without_keeping(place, caplog):
    """A file in its place cannot be read from nor written to, by root either; nobody mends what is no folder of ours."""
    functions = imported(place)
    shutil.rmtree(place)
    place.write_text("in the way")
    assert [functions.outer(x) for x in (1, 1.5)] == [8, 11.5]
    assert place.read_text() == "in the way"
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert len(caplog.records) == 2  # once that it cannot be read, once that it cannot be written
    assert str(place) in caplog.text


def test_a_named_folder_that_cannot_be_made_is_said_with_the_one_that_is_used(place, caplog):
    place.write_text("a file, in which no folder can be made")  # root may write into any folder
    with caplog.at_level(logging.WARNING):
        module = imported(place)
    assert module.outer(1.0) == 8.0
    beside = place.parent / "__pycache__"
    assert files(beside)
    said = [record.message for record in caplog.records]
    assert said == [f"NUMBA_CACHE_DIR is {place}, which cannot be written; compiled code is kept in {beside}"]


def test_without_any_folder_loops_are_compiled_in_each_process_which_is_said(place, caplog):
    """As of a function without a file, beside which nothing can be written."""
    made = {}
    exec("def twice(x):\n    return 2 * x", made)
    twice = compiling.compiled(made["twice"])
    assert twice(21) == 42
    assert twice.signatures
    assert len(caplog.records) == 1
    assert "cannot be kept in the folders that numba knows" in caplog.text


def test_a_numba_that_keeps_code_otherwise_compiles_without_keeping(place, monkeypatch, caplog):
    monkeypatch.delitem(sys.modules, "fedmf.compiled_files")
    monkeypatch.delattr("numba.core.caching.FunctionCache")
    compiling._keeper.cache_clear()
    try:
        assert imported(place).outer(1) == 8
    finally:
        compiling._keeper.cache_clear()
    assert files(place) == []
    assert len(caplog.records) == 1
    assert "is not known to fedmf" in caplog.text


def test_numba_can_ask_for_everything_to_be_compiled_anew(place):
    functions = imported(place)
    functions.inner(1)
    functions.inner.recompile()
    assert sum(functions.inner.stats.cache_misses.values()) == 2
    assert functions.inner(1) == 7


@pytest.mark.slow
def test_a_client_whose_disk_is_full_sends_the_update_that_it_would_send(place, monkeypatch, caplog):
    """It used to answer with an error, which counts as zeros, until it had tried each of its functions."""
    start, update = np.zeros(40_000, np.float32), np.random.default_rng(0).normal(size=40_000).astype("f4")

    def sent():
        return privatize(
            update,
            start=start,
            bounds=Bounds(l2_norm=1.0, linf_norm=0.01),
            rotation=Rotation("hadamard", update.size, PublicSeed(0)),
            keep_probability=0.01,
            mask_key=SecretKey.reproducible(5),
        )

    usual = sent()
    spec = importlib.util.spec_from_file_location("kernels_of_a_new_process", kernels.__file__)
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    monkeypatch.setattr("fedmf.updates.kernels", fresh)
    with full_disk():
        found = sent()
    assert fresh.sweep.signatures  # compiled, and not kept
    assert files(place) == []
    np.testing.assert_array_equal(found, usual)
    assert len(caplog.records) == 1
