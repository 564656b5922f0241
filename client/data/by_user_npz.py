"""Your own arrays: x, y, user and optionally split, in one .npz file or a folder of .npy files."""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np

from client.data.checked import count_classes
from client.data.dataset import CLASSIFICATION, Dataset, describe_unit, shared_users, split_by_user
from client.data.pictures import Rows
from client.data.reading import reading
from client.data.split import Parted, Users
from fedmf.errors import DataError

LICENCE = "the file's own"
SOURCE = "a file of the user's own"
TEST_USERS = "counted when loaded, and said in the privacy statement"
REQUIRED = ("x", "y", "user")


def load(path: str | Path, *, classes: int | None = None, clients_only: bool = False) -> Dataset:
    """Return the classification data set stored at `path`.

    The file holds x [N, ...] (uint8, divided by the public constant 255, or floats taken as they are), y [N]
    (integer labels from 0), user [N] (integers or strings) and optionally split [N] (0 train, 1 test; users
    may overlap or not). Without `split` a fifth of each user's examples, chosen by a public seed, is the test
    set. A folder of .npy files of the same names is memory-mapped. `classes` is public: without it the test
    labels, which are treated as public, say how many there are. With `clients_only` no test input is read, and no test
    example need be there where `classes` is given.

    Raises `DataError` for a missing or malformed file. The values of training examples are not looked at before their
    client is read (`client.data.checked`).
    """
    path = Path(path)
    arrays = read_arrays(path)
    check_arrays(path, arrays, REQUIRED)
    y, users = arrays["y"], Users.of(arrays["user"])
    said = arrays["split"] == 1 if "split" in arrays else None
    rows = users.parted(path, said, mark="split = {}", clients_only=clients_only)
    shown = np.unique(y[rows.test]).tolist()
    known = count_classes(path, f"A test example in {path}", shown, classes, is_needed=rows.is_needed)
    return classified("by_user_npz", path, arrays["x"], y, users, rows, known)


def classified(
    name: str,
    path: Path,
    x: np.ndarray | Rows,
    y: np.ndarray,
    users: Users,
    rows: Parted,
    classes: int,
    uncovered: tuple[str, ...] = (),
) -> Dataset:
    """Return the data set `name` of inputs `x` [N, ...] and labels `y` [N], read from `path`."""
    test = rows.test
    # Rows are an array as far as clients need one.
    clients, examples = split_by_user(
        cast(np.ndarray, x), y, users.numbers, test, clients_only=not rows.is_needed
    )
    return Dataset(
        name=name,
        clients=clients,
        test=examples,
        input_shape=tuple(x.shape[1:]),
        classes=classes,
        task=CLASSIFICATION,
        licence=LICENCE,
        source=path.name,
        unit=describe_unit("user"),
        uncovered=(*uncovered, *shared_users(users.numbers[~test], users.numbers[test])),
        person="user",
    )


def read_arrays(path: Path) -> Mapping[str, np.ndarray]:
    """Return the arrays stored in an .npz file, or, memory-mapped, in a folder of .npy files."""
    with reading(path, "arrays of numbers or strings"):
        if path.is_dir():
            return {
                file.stem: np.load(file, mmap_mode="r", allow_pickle=False)
                for file in sorted(path.glob("*.npy"))
            }
        if not path.is_file():
            raise DataError(f"The data file {path} does not exist; path must name an .npz file.")
        if not zipfile.is_zipfile(path):
            raise DataError(f"{path} is no .npz file; it must be one, with {', '.join(REQUIRED)}.")
        with path.open("rb") as file, np.load(file) as archive:
            arrays = {name: archive[name] for name in archive.files}
    if foreign := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
        raise DataError(f"{path} holds {foreign[0]}, which is no array; an .npz file holds arrays alone.")
    return arrays


def check_arrays(path: Path, arrays: Mapping[str, np.ndarray], required: Sequence[str]) -> None:
    """Raise `DataError` unless the `required` arrays are there, with the shapes and types of `load`."""
    absent = [name for name in required if name not in arrays]
    if absent:
        held = ", ".join(arrays) or "nothing"
        raise DataError(
            f"{path} lacks {', '.join(absent)}; it holds {held} and must hold {', '.join(required)} (split "
            "may be left out)."
        )
    count = len(arrays["x"]) if arrays["x"].ndim else 0
    if arrays["x"].ndim < 2 or arrays["x"].size == 0:
        raise DataError(
            f"x in {path} has the shape {arrays['x'].shape}; it must be [N, ...], each size at least 1."
        )
    for name in ("y", "user", "split"):
        if name in arrays and arrays[name].shape != (count,):
            raise DataError(
                f"{name} in {path} has the shape {arrays[name].shape}; it must be ({count},), one for each x."
            )
    _check_types(path, arrays)


def _check_types(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Raise `DataError` unless every array has a usable type, and split and user usable values."""
    x, y, user, split = arrays["x"], arrays["y"], arrays.get("user"), arrays.get("split")
    if x.dtype != np.uint8 and not np.issubdtype(x.dtype, np.floating):
        raise DataError(f"x in {path} is {x.dtype}; it must be uint8 (0 to 255) or a float type.")
    if not np.issubdtype(y.dtype, np.integer):
        raise DataError(f"y in {path} is {y.dtype}; it must hold integer labels from 0.")
    if user is not None and user.dtype.kind not in "iuUS":
        raise DataError(f"user in {path} is {user.dtype}; it must hold integers or strings.")
    if split is not None and (split.dtype.kind not in "iufb" or not np.isin(split, (0, 1)).all()):
        raise DataError(
            f"split in {path} holds something else ({split.dtype}); it must be 0 (train) or 1 (test)."
        )
