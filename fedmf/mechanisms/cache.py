"""Results kept on disk, by what they were computed from: settings and the source text of this package.

The directory is the environment variable FEDMF_CACHE, or ~/.cache/fedmf. A file that cannot be read is
computed again with a warning; a directory that cannot be written only logs. Nothing secret is ever stored
here.

The code version covers every file of this package, the compiled loops, and the versions of numpy and scipy,
whose eigenvalues and optimizers decide the numbers of a table. It leaves out what cannot change a number:
the rest of fedmf, of which only checks, choices, errors and compiling are used here, and numba, whose results agree
with those of numpy to rounding, so that installing it changes no mechanism of a run under way.
"""

import dataclasses
import hashlib
import json
import logging
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path

import numpy as np

from fedmf.mechanisms.arrays import Arrays

_log = logging.getLogger(__name__)

PACKAGE = Path(__file__).parent
LOOPS = PACKAGE.parent / "fast.py"
LIBRARIES = ("numpy", "scipy")

# What reading a damaged file raises; RuntimeError where a flipped bit asks for a password or an unknown method.
_DAMAGED = (
    OSError, ValueError, EOFError, KeyError, TypeError, AttributeError, RuntimeError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def cached(kind: str, settings: Mapping[str, object], compute: Callable[[], Arrays]) -> Arrays:
    """Return compute(), or what an earlier call of the same kind, settings and code version returned.

    `settings` holds numbers, strings, None, tuples and arrays of numbers, and frozen values of these.
    """
    path = directory() / f"{kind}-{_digest(kind, settings)}.npz"
    stored = _read(path)
    if stored is None:
        stored = compute()
        _write(path, stored)
    return stored


def directory() -> Path:
    """Return where results are kept."""
    return Path(os.environ.get("FEDMF_CACHE") or Path.home() / ".cache" / "fedmf")


def _digest(kind: str, settings: Mapping[str, object]) -> str:
    described = {name: _describe(value) for name, value in settings.items()}
    text = json.dumps([kind, described, code_version(PACKAGE)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _describe(value: object) -> object:
    """Return `value` as JSON that differs wherever the value does: every field of a frozen value counts."""
    if dataclasses.is_dataclass(value):
        return [_describe(getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, tuple | np.ndarray):
        numbers = np.asarray(value, dtype=np.float64)
        return [len(value), hashlib.sha256(numbers.tobytes()).hexdigest()]
    return float(value).hex() if isinstance(value, float) else value


@cache
def code_version(package: Path) -> str:
    """Return a digest of what computes results: any change of it makes older results unfindable.

    It covers all sources below `package` and the compiled loops, with their names, and the versions of `LIBRARIES`.
    """
    digest = hashlib.sha256(json.dumps([version(library) for library in LIBRARIES]).encode())
    digest.update(LOOPS.read_bytes())
    for source in sorted(package.rglob("*.py")):
        digest.update(str(source.relative_to(package)).encode() + source.read_bytes())
    return digest.hexdigest()


def _read(path: Path) -> Arrays | None:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return _checked({name: archive[name] for name in archive.files})
    except FileNotFoundError:
        return None
    except _DAMAGED as error:
        _log.warning("cannot read the cached result %s (%s): it is computed again", path, error)
        return None


def _checked(stored: Arrays) -> Arrays:
    """Return stored arrays less their digest. Raises `ValueError` unless they are as they were written."""
    digest = str(stored.pop("digest"))
    if digest != _digest_of_arrays(stored):
        raise ValueError("its content is not what was written")
    return stored


def _digest_of_arrays(arrays: Arrays) -> str:
    """Return a digest of names, types, shapes and numbers: a sensitivity read back must be the one computed."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _write(path: Path, arrays: Arrays) -> None:
    """Write atomically: a reader sees the whole file or none."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
            temporary = Path(file.name)
            np.savez(file, allow_pickle=False, digest=np.array(_digest_of_arrays(arrays)), **arrays)
        temporary.replace(path)
    except OSError as error:
        _log.warning("cannot keep the result in %s (%s): it will be computed again next time", path, error)
        if temporary is not None:
            temporary.unlink(missing_ok=True)
