"""Your own arrays: x, y, user and optionally split, in one .npz file or a folder of .npy files."""

import zipfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np

from client.data.checked import MOST_CLASSES, NO_CLASSES, count_classes
from client.data.dataset import CLASSIFICATION, Dataset, describe_unit, shared_users, split_by_user
from client.data.made import opened
from client.data.maps import mapped
from client.data.progress import Preparation
from client.data.reading import reading
from client.data.split import SPLIT_SEED, check_split, fifth_of_each
from fedmf.checks import check_at_least
from fedmf.errors import DataError

LICENCE = "the file's own"
SOURCE = "a file of the user's own"
TEST_USERS = "counted when loaded, and said in the privacy statement"
REQUIRED = ("x", "y", "user")
HELD = 1 << 26
"""Bytes of an unpacked .npz file up to which it is read into memory."""
_BLOCK = 1 << 20


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
    x, y, user = arrays["x"], arrays["y"], arrays["user"]
    test = arrays["split"] == 1 if "split" in arrays else _drawn(user, clients_only)
    check_split(path, test, mark="split = {}", may_be_none=clients_only)
    clients, test_examples = split_by_user(x, y, user, test, clients_only=clients_only)
    return Dataset(
        name="by_user_npz",
        clients=clients,
        test=test_examples,
        input_shape=tuple(x.shape[1:]),
        classes=public_classes(path, y[test], classes, clients_only=clients_only),
        task=CLASSIFICATION,
        licence=LICENCE,
        source=path.name,
        unit=describe_unit("user"),
        uncovered=shared_users(user[~test], user[test]),
        person="user",
    )


def _drawn(user: np.ndarray, clients_only: bool) -> np.ndarray:
    """Return which rows are test rows where the file does not say it."""
    return fifth_of_each(user, seed=SPLIT_SEED, may_be_none=clients_only)


def read_arrays(path: Path) -> Mapping[str, np.ndarray]:
    """Return the arrays stored in an .npz file, or, memory-mapped, in a folder of .npy files.

    Those of a big .npz file are unpacked into the cache and mapped too, so that all processes share them.
    """
    with reading(path, "arrays of numbers or strings"):
        if path.is_dir():
            return {file.stem: mapped(file) for file in sorted(path.glob("*.npy"))}
        if not path.is_file():
            raise DataError(f"The data file {path} does not exist; path must name an .npz file.")
        if not zipfile.is_zipfile(path):
            raise DataError(f"{path} is no .npz file; it must be one, with {', '.join(REQUIRED)}.")
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size <= HELD:
            with path.open("rb") as file, np.load(file) as archive:
                arrays = {name: archive[name] for name in archive.files}
        else:
            arrays = _unpacked(path)
    if foreign := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
        raise DataError(f"{path} holds {foreign[0]}, which is no array; an .npz file holds arrays alone.")
    return arrays


def _unpacked(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a big .npz file, unpacked once into the cache and mapped."""
    with opened([path], "arrays", partial(_unpack, path)) as folder:
        return {file.stem: mapped(file) for file in sorted(folder.iterdir())}


def _unpack(path: Path, folder: Path) -> None:
    """Write the arrays of an .npz file into a folder of .npy files, none of them whole in memory."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if foreign := [member.filename for member in members if not _is_array_name(member.filename)]:
            raise DataError(f"{path} holds {foreign[0]}, which is no array; an .npz file holds arrays alone.")
        total = sum(member.file_size for member in members)
        with Preparation(f"unpacking {path} into the cache", total) as progress:
            for member in members:
                with archive.open(member) as content, (folder / member.filename).open("wb") as target:
                    while block := content.read(_BLOCK):
                        target.write(block)
                        progress.advance(len(block))


def _is_array_name(name: str) -> bool:
    """Say whether a member of an archive is called as an array is: NAME.npy, in no folder."""
    return name.endswith(".npy") and PurePosixPath(name).name == name and "\\" not in name


def public_classes(path: Path, test: np.ndarray, classes: int | None, *, clients_only: bool = False) -> int:
    """Return the number of classes: the setting, or one more than the largest of the `test` labels, which are public.

    With `clients_only` and the setting these are not looked at; without it one that stands for no class is left out.
    """
    if classes is not None:
        check_at_least("classes", classes, 1)
        if clients_only:
            return classes
    if clients_only:
        test = test[(test >= 0) & (test < MOST_CLASSES)]
    if len(test) == 0:
        raise DataError(NO_CLASSES.format(path))
    return count_classes(f"A test example in {path}", int(test.min()), int(test.max()), classes)


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
        held = np.unique(split)[:5].tolist() if split.dtype.kind in "iufb" else split.dtype
        raise DataError(f"split in {path} holds {held}; it must be 0 (train) or 1 (test).")
