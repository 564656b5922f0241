"""Where the files of a data set lie: ~ is the home folder, packed files are unpacked, TFF's own folder is known.

TensorFlow Federated unpacks what it downloads into ~/.tff, under the names below
(tensorflow_federated/python/simulation/datasets/download.py, emnist.py, shakespeare.py, stackoverflow.py).
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from client.data.packed import is_packed, unpacked
from client.data.reading import reading
from fedmf.errors import DataError

TFF_FOLDER = "~/.tff"
TFF_FILES = {
    "femnist": "emnist_all.sqlite",
    "shakespeare": "shakespeare.sqlite",
    "stackoverflow": "stackoverflow.sqlite",
}
PACKED = ("", ".lzma", ".xz")
OTHERS = ("*_train.h5", "train/*.json", "*.parquet", "data/*.parquet", "*.csv")
"""What else the loaders of these data sets find in a folder."""


@contextmanager
def found(name: str, given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Give the block the arguments of data set `name` with `path` and `vocabulary` as files that can be opened.

    An error inside names the files as they were given, not their unpacked form. A loader of one's own gets its files as
    they are, with ~ replaced.
    """
    located = dict(given)
    for key in ("path", "vocabulary"):
        if key in given:
            located[key] = expanded(given[key])
    if ":" not in name:
        _refuse_unnamed(name, given)
        for key in ("path", "vocabulary"):
            if key in given:
                with reading(given[key], "a file or folder"):  # a name may be too long to be one
                    Path(located[key]).exists()
                located[key] = str(
                    opened(in_tff(name, Path(located[key])) if key == "path" else located[key])
                )
    try:
        yield located
    except DataError as error:
        error.args = (as_given(str(error), given, located),)
        raise


def as_given(text: str, given: Mapping[str, Any], located: Mapping[str, Any]) -> str:
    """Return `text` with the files as they were given, not as they were found.

    Whole paths alone are replaced, and what lies below them; a path that is only spelt otherwise (a/ for a) is left.

    >>> as_given("/home/ann/x.csv, line 3.", {"path": "~/x.csv"}, {"path": "/home/ann/x.csv"})
    '~/x.csv, line 3.'
    """
    keys = [key for key in ("path", "vocabulary") if key in given]
    said = {located[key]: str(given[key]) for key in keys if Path(located[key]) != Path(str(given[key]))}
    if not said:
        return text
    longest = sorted(said, key=len, reverse=True)
    whole = rf"(?<![\w./~-])({'|'.join(map(re.escape, longest))})(?![\w-]|\.\w)"
    return re.sub(whole, lambda found: said[found[0]].rstrip("/") or "/", text)


def expanded(path: str | Path) -> str:
    """Return `path` with a leading ~ replaced by the home folder."""
    try:
        return str(Path(path).expanduser())
    except RuntimeError as error:
        raise DataError(f"path is {path}, whose home folder is not known ({error}).") from error


def opened(path: str | Path) -> Path:
    """Return `path`, or its unpacked form where it is a packed file."""
    path = Path(path)
    return unpacked(path) if is_packed(path) and path.is_file() else path


def in_tff(name: str, folder: Path) -> Path:
    """Return TFF's file of data set `name` in a folder such as ~/.tff, or the folder where there is none.

    Raises `DataError` for a folder that holds other files of the data set too: which are meant must be said.
    """
    file = _tff_file(name, folder)
    if file is None:
        return folder
    if other := next((found for pattern in OTHERS for found in sorted(folder.glob(pattern))), None):
        raise DataError(
            f"{folder} holds {file.name} and {other.relative_to(folder)}, of which either may be meant; set path to "
            f"{file}, or to a folder without it."
        )
    return file


def _tff_file(name: str, folder: Path) -> Path | None:
    """Return TFF's file of a data set in a folder, unpacked or not, or None."""
    if name not in TFF_FILES or not folder.is_dir():
        return None
    files = (folder / f"{TFF_FILES[name]}{suffix}" for suffix in PACKED)
    return next((file for file in files if file.is_file()), None)


def _refuse_unnamed(name: str, given: Mapping[str, Any]) -> None:
    """Raise `DataError` where TFF's file lies in its folder and nothing was said: a file is used where it is named."""
    if "path" in given or given.get("download"):
        return
    if file := _tff_file(name, Path(expanded(TFF_FOLDER))):
        raise DataError(
            f"Dataset {name} needs files, and TFF's {file.name} lies in {TFF_FOLDER}: set path to {TFF_FOLDER} to use it."
        )
