"""Compiled code kept on disk, so that a process loads what another has compiled; no state of the disk breaks a computation.

numba reads its files unseen: after a power loss an empty one raises at every call, and one with a hole would run. Here
each signature of a function has a file of its own, whose digest is checked before anything of it is used. Code that
cannot be read is compiled anew and replaces what was there; code that cannot be written is compiled in each process.
Either is said once a process. Imported only where numba can be used.
"""

import hashlib
import logging
import numbers
import pickle
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

import numba

_log = logging.getLogger(__name__)

SUFFIX = ".fedmf"  # numba's own files, beside which these lie, end otherwise
_options: Any = import_module("numba.core.config")
_caching: Any = import_module("numba.core.caching")  # numba says of few of its functions what they take
_dumps: Callable[..., bytes] = import_module("numba.core.serialize").dumps
_DIGEST = hashlib.sha256().digest_size
_said: set[str] = set()


def keep(dispatcher: Any) -> None:
    """Keep what numba's `dispatcher` compiles on disk, where there is a place for it."""
    try:
        dispatcher._cache = _GuardedCache(dispatcher.py_func)
    except Exception as error:  # RuntimeError: no folder may be written
        _warn_unkept("the folders that numba knows", error)


class _GuardedCache(_caching.FunctionCache):  # type: ignore[misc]
    """numba's cache of one function, where whatever goes wrong means that the function is compiled."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        named = _options.CACHE_DIR
        if named and not Path(self._cache_path).absolute().is_relative_to(Path(named).absolute()):
            _warn(
                "elsewhere",
                f"NUMBA_CACHE_DIR is {named}, which cannot be written; compiled code is kept in {self._cache_path}",
            )
        stamp = (numba.__version__, self._impl.locator.get_source_stamp(), _compiled_in(function))
        self._cache_file = _Files(Path(self._cache_path), self._impl.filename_base, stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the code kept for the signature, or None where there is none that can be used."""
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:  # whatever a damaged file, or the system, makes of it
            _warn(
                "read",
                f"compiled code kept in {self._cache_path} cannot be read ({_described(error)}); it is compiled anew "
                "and replaced. If this is said again, delete that folder, or name another by NUMBA_CACHE_DIR",
            )
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the code compiled for the signature, if it can be kept."""
        try:
            super().save_overload(sig, data)
        except Exception as error:  # a full disk, a folder that is gone or may not be written
            _warn_unkept(self._cache_path, error)


class _Files:
    """The files of one function, one a signature: the SHA-256 of the rest, then (stamp, key, code) pickled."""

    def __init__(self, folder: Path, name: str, stamp: object) -> None:
        self._folder, self._name, self._stamp = folder, name, stamp

    def load(self, key: Any) -> Any:
        """Return the code kept under `key`, None where there is none of this source and this numba."""
        try:
            content = self._path(key).read_bytes()
        except FileNotFoundError:
            return None
        if hashlib.sha256(content[_DIGEST:]).digest() != content[:_DIGEST]:
            raise ValueError(f"{self._path(key).name} is damaged")
        stamp, kept, code = pickle.loads(content[_DIGEST:])
        return code if (stamp, kept) == (self._stamp, key) else None

    def save(self, key: Any, code: Any) -> None:
        """Keep `code` under `key`: whole or not at all."""
        content = _dumps((self._stamp, key, code))
        temporary = self._folder / f"{self._name}.{uuid4().hex[:16]}"
        try:
            temporary.write_bytes(hashlib.sha256(content).digest() + content)
            temporary.replace(self._path(key))
        finally:
            temporary.unlink(missing_ok=True)

    def flush(self) -> None:
        """Forget what is kept, as numba asks before it compiles everything again."""
        for path in self._folder.glob(f"{self._name}.*{SUFFIX}"):
            path.unlink(missing_ok=True)

    def _path(self, key: Any) -> Path:
        signature, machine, _ = (
            key  # the last is the bytecode: other code of the same function takes its place
        )
        digest = hashlib.sha256(repr((signature, machine)).encode()).hexdigest()[:16]
        return self._folder / f"{self._name}.{digest}{SUFFIX}"


def _compiled_in(function: Callable[..., Any]) -> list[tuple[str, str]]:
    """Return what of other files is compiled into `function`: numbers, and the code of compiled functions that it calls."""
    found, seen, waiting = [], {id(function)}, [function]
    while waiting:
        code, variables = (here := waiting.pop()).__code__, here.__globals__
        found.append((here.__qualname__, repr((code.co_code, code.co_consts, code.co_names))))
        for name in code.co_names:
            value = variables.get(name)
            if isinstance(value, numbers.Number):
                found.append((name, repr(value)))
            elif (called := getattr(value, "py_func", None)) is not None and id(called) not in seen:
                seen.add(id(called))
                waiting.append(called)
    return found


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _warn_unkept(place: str, error: Exception) -> None:
    advice = ". Make room there and let it be written, or name another folder by NUMBA_CACHE_DIR"
    no_folder = isinstance(error, OSError) or "no locator" in str(error)
    _warn(
        "write",
        f"compiled code cannot be kept in {place} ({_described(error)}), so every process compiles it, which takes "
        f"seconds{advice if no_folder else ''}",
    )


def _warn(kind: str, sentence: str) -> None:
    """Log a warning, the first of its kind in this process: every function would repeat it."""
    if kind not in _said:
        _said.add(kind)
        _log.warning("%s", sentence)
