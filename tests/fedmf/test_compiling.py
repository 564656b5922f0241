"""One answer to whether numba can be used, which the server's loops, the client's, designs and the benchmark go by."""

import builtins
import logging

import pytest

from experiments.benchmark import row
from experiments.reproduce import tools
from fedmf import compiling
from fedmf.errors import SettingError
from fedmf.randomness import SecretKey
from fedmf.updates.masks import coordinates
from oracles import needs_numba


@pytest.fixture(autouse=True)
def _asked_again():
    """Let what is known of numba be found out again."""
    compiling.loops.cache_clear()
    yield
    compiling.loops.cache_clear()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ModuleNotFoundError("No module named 'numba'", name="numba"), ""),
        (ImportError("Numba needs NumPy 2.9 or less"), "Numba needs NumPy 2.9 or less"),
        (OSError("Could not find libllvmlite.so"), "Could not find libllvmlite.so"),
    ],
    ids=["missing", "numpy", "library"],
)
def test_without_numba_numpy_is_used_everywhere_and_a_broken_numba_is_said(error, said, monkeypatch, caplog):
    real = builtins.__import__

    def importing(name, *rest):
        if name == "numba":
            raise error
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", importing)
    with caplog.at_level(logging.WARNING):
        assert (compiling.version(), compiling.loops()) == (None, None)
        assert "numba" not in tools.where()
        with pytest.raises(SettingError, match="mask has no limit without numba"):
            row.read_limits(["mask"])
    assert said in caplog.text
    assert len(caplog.records) == bool(said)
    assert coordinates(SecretKey.reproducible(5), 1 << 16, 0.01).size


@needs_numba
def test_the_version_is_that_of_the_numba_that_compiles(monkeypatch, caplog):
    import numba

    assert compiling.version() == numba.__version__
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    compiling.loops.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert compiling.loops() is None
    assert "NUMBA_DISABLE_JIT is set; numpy is used" in caplog.text
