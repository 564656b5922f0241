"""One answer to whether numba can be used, which the server's loops and the client's go by."""

import builtins
import logging

import pytest

from fedmf import compiling, kernels
from fedmf.randomness import SecretKey
from fedmf.updates import compiled
from fedmf.updates.masks import kept_coordinates


def test_without_numba_plain_numpy_is_used_by_server_and_client_and_a_broken_numba_is_said(
    monkeypatch, caplog
):
    """The loops as plain Python, which they are without a compiler, would take minutes for what numpy does in a second."""
    real = builtins.__import__

    def failing(error):
        def importing(name, *rest):
            if name == "numba":
                raise error
            return real(name, *rest)

        return importing

    monkeypatch.setattr(kernels, "_handled", kernels.PAYS)
    try:
        for error, said in (
            (ModuleNotFoundError("No module named 'numba'", name="numba"), ""),
            (ImportError("Numba needs NumPy 2.9 or less"), "Numba needs NumPy 2.9 or less"),
            (OSError("Could not find libllvmlite.so"), "Could not find libllvmlite.so"),
        ):
            compiling.available.cache_clear()
            with monkeypatch.context() as patch:
                patch.setattr(builtins, "__import__", failing(error))
                with caplog.at_level(logging.WARNING):
                    assert not compiling.available()
                    assert compiling.version() is None
                    assert kernels.kernel("add", 1) is None
                    assert compiled.kernels(1 << 20) is None
                assert said in caplog.text
                assert len(caplog.records) == bool(said)
                caplog.clear()
                assert kept_coordinates(SecretKey.reproducible(5), 1 << 16, 0.01).size
    finally:
        compiling.available.cache_clear()


@pytest.mark.skipif(not compiling.available(), reason="numba, the extra fast, is not installed")
def test_the_version_is_that_of_the_numba_that_compiles():
    import numba

    assert compiling.version() == numba.__version__


@pytest.mark.skipif(not compiling.available(), reason="numba, the extra fast, is not installed")
def test_loops_that_cannot_be_kept_on_disk_are_compiled_all_the_same():
    """As of a function without a file, beside which nothing can be written."""
    made = {}
    exec("def twice(x):\n    return 2 * x", made)
    twice = compiling.compiled(made["twice"])
    assert twice(21) == 42
    assert twice.signatures
