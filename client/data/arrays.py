"""Arrays of your own, with users or without, in an .npz file, a folder of .npy files or MNIST's four idx files."""

import gzip
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from client.data.clients import stored_examples
from client.data.dataset import CLASSIFICATION, Dataset, Public, as_targets
from client.data.own import Owned, OwnSettings, count_classes, owned, task_of
from client.data.reading import reading
from fedmf.errors import DataError

REQUIRED = ("x", "y", "user")
# numpy's letters for the types that each array may have, besides uint8 for x, and what these are.
KINDS = {
    "x": ("f", "uint8 (0 to 255) or floats"),
    "y": ("iufb", "integer labels from 0, or numbers"),
    "user": ("iuUS", "integers or strings"),
    "split": ("iufb", "0 (train) or 1 (test)"),
}
# numpy's types for the third byte of an idx file (LeCun's MNIST page).
IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_IDX = re.compile(r"(train|t10k|test)-(images|labels)[-.]idx\d-ubyte(\.gz)?$")


def load_arrays(name: str, path: Path, settings: OwnSettings, public: Public | None) -> Dataset:
    """Return the dataset `name` stored at `path`.

    The file holds x [N, ...] (uint8, divided by the public constant 255, or floats taken as they are), y ([N] integer
    labels from 0, [N] or [N, k] amounts, or [N, k] of 0 and 1), user [N] (integers or strings) and optionally split [N] (0 train, 1 test; users
    may overlap or not). Without `split` a fifth of each user's examples, chosen by a public seed, is the test
    set. A folder of .npy files of the same names is memory-mapped; one of idx files has no users. The number of classes is
    public: where no setting has it the test labels, which are treated as public, say how many there are. With `public` only
    clients are made.

    Raises `DataError` for a missing or malformed file. The values of training examples are not looked at before their
    client is read.
    """
    return _by_user(
        name, path, read_arrays(path, REQUIRED if settings.has_users else REQUIRED[:2]), settings, public
    )


def _by_user(
    name: str,
    path: Path,
    arrays: Mapping[str, np.ndarray],
    settings: OwnSettings,
    public: Public | None = None,
) -> Dataset:
    owners = arrays["user"] if settings.has_users else np.zeros(len(arrays["y"]), int)
    names, users = np.unique(owners, return_inverse=True)
    said = arrays["split"] == 1 if "split" in arrays else None
    rows = owned(path, users, names.tolist(), said, "split = {}", public, settings)
    y, known, task = read_targets(arrays["y"], arrays["y"][rows.test], path, settings, public)
    return rows.dataset(name, arrays["x"], y, known, task=task)


def read_targets(
    y: np.ndarray, shown: np.ndarray, path: Path, settings: OwnSettings, public: Public | None = None
) -> tuple[np.ndarray, int, str]:
    """Return (targets as their task has them, how many classes or numbers of a target, the task) of the array `y` at `path`.

    `shown` are those of the test set, which is public. Raises `DataError` for what is no target of the task.
    """
    task = public.task if public else settings.task or task_of(shown, f"y in {path}")
    if task != CLASSIFICATION:
        settings.refuse(f"the task is {task}", "classes")
        y = as_targets(y.astype(float)).reshape(len(y), -1)
        return y, y.shape[1], task
    if y.ndim > 1 or y.dtype.kind not in "iu":
        raise DataError(
            f"y in {path} is {y.dtype} {list(y.shape)}; of classification it must be one integer label from 0 for each x."
        )
    labels = np.unique(shown).tolist()
    known = public.classes if public else count_classes(f"A test example in {path}", labels, settings.classes)
    return y, known, task


def from_arrays(
    x: Any,
    y: Any,
    user: Any,
    *,
    test: tuple[Any, Any] | None = None,
    classes: int | None = None,
    task: str | None = None,
) -> Dataset:
    """Return the dataset of arrays in memory, which may be tensors or columns of a table.

    `x` [N, ...], `y` [N] or [N, k] and `user` [N] are those of `load_arrays`, `task` is that of `OwnSettings`. `test` is (x, y) of the test set, which is public; without it a
    fifth of each user's examples is. Nothing is copied: the arrays must stay as they are. Raises `DataError` as `load_arrays`.

    >>> rng = np.random.default_rng(0)
    >>> data = from_arrays(rng.normal(size=(60, 4)), np.arange(60) % 3, np.arange(60) // 6)
    >>> len(data.clients), len(data.test), data.classes
    (10, 10, 3)
    """
    place, settings = Path("from_arrays"), OwnSettings(classes=classes, task=task)
    owners = np.asarray(user)
    if owners.ndim and owners.dtype.hasobject:  # texts of a column of a table
        owners = np.array([*owners])
    arrays = checked({"x": np.asarray(x), "y": np.asarray(y), "user": owners}, place, REQUIRED)
    if test is None:
        return _by_user("arrays", place, arrays, settings)
    shown = checked(dict(zip(REQUIRED, map(np.asarray, test), strict=False)), Path("test"), REQUIRED[:2])
    kinds = [(held["x"].dtype == np.uint8, held["x"].shape[1:]) for held in (arrays, shown)]
    if kinds[0] != kinds[1]:
        raise DataError(
            f"x in test is {shown['x'].dtype} {list(kinds[1][1])}, but x is {arrays['x'].dtype} {list(kinds[0][1])}; both must "
            "be of one shape, and both bytes (0 to 255) or both floats."
        )
    users = np.unique(arrays["user"], return_inverse=True)[1]
    (targets, known, task), (shown_targets, _, _) = (
        read_targets(held["y"], shown["y"], where, settings)
        for held, where in ((arrays, place), (shown, Path("test")))
    )
    rows = Owned(place, users, np.zeros(len(users), bool), None)
    dataset = rows.dataset("arrays", arrays["x"], targets, known, task=task)
    return replace(dataset, test=stored_examples(shown["x"], shown_targets, np.arange(len(shown_targets))))


def read_arrays(path: Path, required: Sequence[str]) -> Mapping[str, np.ndarray]:
    """Return the arrays stored in an .npz file, or, memory-mapped, in a folder of .npy files.

    Raises `DataError` unless the `required` ones are there, with usable shapes and types.
    """
    with reading(path, "arrays of numbers or strings"):
        if path.is_dir():
            files = sorted(path.glob("*.npy"))
            arrays = {file.stem: np.load(file, mmap_mode="r", allow_pickle=False) for file in files}
            arrays = arrays or read_idx(path)
        elif zipfile.is_zipfile(path):
            with path.open("rb") as file, np.load(file) as archive:
                arrays = {name: array for name, array in archive.items() if isinstance(array, np.ndarray)}
        else:
            problem = "is no .npz file" if path.exists() else "does not exist"
            raise DataError(f"{path} {problem}; path must name an .npz file with {', '.join(REQUIRED)}.")
    return checked(arrays, path, required)


def checked(
    arrays: Mapping[str, np.ndarray], path: Path, required: Sequence[str]
) -> Mapping[str, np.ndarray]:
    """Return the arrays of `path`. Raises `DataError` unless the `required` ones are there, with usable shapes and types."""
    if absent := [name for name in required if name not in arrays]:
        held = ", ".join(arrays) or "nothing"
        raise DataError(
            f"{path} lacks {', '.join(absent)}; it holds {held} and must hold {', '.join(required)} (split "
            "may be left out; without users choose dataset=partitioned)."
        )
    count = len(arrays["x"]) if arrays["x"].ndim else 0
    if arrays["x"].ndim < 2 or arrays["x"].size == 0:
        raise DataError(
            f"x in {path} has the shape {arrays['x'].shape}; it must be [N, ...], each size at least 1."
        )
    for name, (kinds, right) in KINDS.items():
        if name not in arrays:
            continue
        array = arrays[name]
        is_right = array.shape == (count,) or (name == "y" and array.ndim == 2 and len(array) == count)
        if name != "x" and not (is_right and array.size):
            raise DataError(
                f"{name} in {path} has the shape {array.shape}; it must be ({count},), one for each x."
            )
        if array.dtype.kind not in kinds and (name != "x" or array.dtype != np.uint8):
            raise DataError(f"{name} in {path} is {array.dtype}; it must hold {right}.")
    if not np.isin(arrays.get("split", 0), (0, 1)).all():
        raise DataError(f"split in {path} holds something else; it must hold 0 (train) or 1 (test).")
    return arrays


def read_idx(folder: Path) -> dict[str, np.ndarray]:
    """Return x, y and split of four idx files, as MNIST, Fashion-MNIST and EMNIST are published; nothing where there is none."""
    files = {file: found for file in sorted(folder.iterdir()) if (found := _IDX.search(file.name))}
    held: dict[tuple[str, bool], np.ndarray] = {}
    for file, found in files.items():
        content = gzip.decompress(file.read_bytes()) if found[3] else file.read_bytes()
        shape = np.frombuffer(content, ">i4", content[3], 4)
        array = np.frombuffer(content, IDX_TYPES[content[2]], offset=4 + 4 * len(shape)).reshape(shape)
        held[found[2], found[1] != "train"] = array
    if files and (len(files), len(held)) != (4, 4):
        raise DataError(
            f"{folder} holds {len(files)} idx files; it must hold images and labels of train and of t10k (or test), one each."
        )
    if not held:
        return {}
    x, y = (np.concatenate([held[part, False], held[part, True]]) for part in ("images", "labels"))
    counts = [len(held["labels", is_test]) for is_test in (False, True)]
    return {"x": x, "y": y, "split": np.repeat([0, 1], counts)}
