"""One answer to whether numba can be used, which the server's loops, the client's, designs and the benchmark go by."""

import builtins
import logging
import signal

import pytest

from experiments.benchmark import limits
from experiments.reproduce import page
from fedmf import compiling, kernels, mechanisms
from fedmf.errors import SettingError
from fedmf.randomness import SecretKey
from fedmf.updates.masks import kept_coordinates
from without_numba import needs_numba


def forget():
    """Let what is known of numba be found out again."""
    compiling.available.cache_clear()
    compiling.loops.cache_clear()


def test_without_numba_plain_numpy_is_used_by_server_client_and_designs_and_a_broken_numba_is_said(
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

    try:
        for error, said in (
            (ModuleNotFoundError("No module named 'numba'", name="numba"), ""),
            (ImportError("Numba needs NumPy 2.9 or less"), "Numba needs NumPy 2.9 or less"),
            (OSError("Could not find libllvmlite.so"), "Could not find libllvmlite.so"),
            (AttributeError("module 'coverage' has no attribute 'types'"), "no attribute 'types'"),
        ):
            forget()
            with monkeypatch.context() as patch:
                patch.setattr(builtins, "__import__", failing(error))
                with caplog.at_level(logging.WARNING):
                    assert not compiling.available()
                    assert compiling.version() is None
                    assert kernels.kernel("add") is None
                    assert compiling.loops("fedmf.updates.kernels") is None
                    assert mechanisms.compiled.kernel("tridiagonal", 1 << 20) is None
                    assert "numba" not in page.where()
                    with pytest.raises(SettingError, match="set with numba, which cannot be used here"):
                        limits.read(["mask"])
                assert said in caplog.text
                assert len(caplog.records) == bool(said)
                caplog.clear()
                assert kept_coordinates(SecretKey.reproducible(5), 1 << 16, 0.01).size
    finally:
        forget()


@needs_numba
def test_the_version_is_that_of_the_numba_that_compiles():
    import numba

    assert compiling.version() == numba.__version__


@needs_numba
def test_where_numba_is_told_not_to_compile_numpy_is_used_and_that_is_said(monkeypatch, caplog):
    import numba

    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    forget()
    try:
        with caplog.at_level(logging.WARNING):
            assert not compiling.available()
            assert compiling.loops("fedmf.updates.kernels") is None
        assert "NUMBA_DISABLE_JIT is set; numpy is used" in caplog.text
    finally:
        forget()


@needs_numba
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_while_a_loop_is_compiled_comes_after_it(number, monkeypatch, tmp_path):
    """Raised where LLVM calls back it would be printed and forgotten, and the process would go on."""
    import numba

    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    def one(x):
        return x + 1

    def stop(number, frame):
        raise KeyboardInterrupt

    def compile_one(signature):
        signal.raise_signal(number)
        done.append(signature)

    done = []
    before = signal.signal(number, stop)
    try:
        loop = compiling.compiled(one)
        with pytest.raises(KeyboardInterrupt):
            compiling._uninterrupted(compile_one, "signature")
        assert done == ["signature"]
        assert signal.getsignal(number) is stop
        monkeypatch.setattr(
            loop._compiler,
            "compile",
            lambda *types, real=loop._compiler.compile: compile_one(types) or real(*types),
        )
        with pytest.raises(KeyboardInterrupt):
            loop(1)
        assert len(done) == 2
        assert loop(1) == 2
    finally:
        signal.signal(number, before)
