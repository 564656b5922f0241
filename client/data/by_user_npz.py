"""Your own arrays: x, y, user and optionally split, in one .npz file or a folder of .npy files."""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from client.data.dataset import CLASSIFICATION, Dataset, describe_unit, split_by_user
from fedmf.checks import check_at_least
from fedmf.errors import DataError

LICENCE = "the file's own"
SOURCE = "a file of the user's own"
REQUIRED = ("x", "y", "user")
SPLIT_SEED = 0
"""Public and fixed: it chooses the test examples of a file without `split`, whatever a run's seed is."""
OVERLAP = "Test examples of training users are treated as public; only their training examples are covered."


def load(path: str | Path, *, examples_per_client: int | None = None, classes: int | None = None) -> Dataset:
    """Return the classification data set stored at `path`.

    The file holds x [N, ...] (uint8, divided by the public constant 255, or floats taken as they are), y [N]
    (integer labels from 0), user [N] (integers or strings) and optionally split [N] (0 train, 1 test; users
    may overlap or not). Without `split` a fifth of each user's examples, chosen by a public seed, is the test
    set. A folder of .npy files of the same names is memory-mapped. `examples_per_client` cuts large users,
    and the unit of privacy with them. `classes` is public: without it the test labels, which are treated as
    public, say how many there are.

    Raises `DataError` for a missing or malformed file.
    """
    path = Path(path)
    arrays = read_arrays(path)
    check_arrays(path, arrays, REQUIRED)
    x, y, user = arrays["x"], arrays["y"], arrays["user"]
    overlap: tuple[str, ...] = ()
    test = arrays["split"] == 1 if "split" in arrays else fifth_of_each(user, seed=SPLIT_SEED)
    if np.isin(user[test], user[~test]).any():
        overlap = (OVERLAP,)
    if test.all() or not test.any():
        missing = "training" if test.all() else "test"
        raise DataError(
            f"{path} has no {missing} example; mark some with split = {0 if test.all() else 1}, or leave split out: a fifth "
            "of each user's examples is the test set then."
        )
    clients, test_examples = split_by_user(x, y, user, test, examples_per_client)
    return Dataset(
        name="by_user_npz",
        clients=clients,
        test=test_examples,
        input_shape=tuple(x.shape[1:]),
        classes=public_classes(path, y[~test], y[test], classes),
        task=CLASSIFICATION,
        licence=LICENCE,
        source=path.name,
        unit=describe_unit("user", examples_per_client),
        uncovered=overlap,
    )


def read_arrays(path: Path) -> Mapping[str, np.ndarray]:
    """Return the arrays stored in an .npz file, or, memory-mapped, in a folder of .npy files."""
    try:
        if path.is_dir():
            return {file.stem: np.load(file, mmap_mode="r") for file in sorted(path.glob("*.npy"))}
        if not path.is_file():
            raise DataError(f"The data file {path} does not exist; path must name an .npz file.")
        if not zipfile.is_zipfile(path):
            raise DataError(f"{path} is no .npz file; it must be one, with {', '.join(REQUIRED)}.")
        with np.load(path) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read as arrays of numbers or strings ({error}).") from error


def fifth_of_each(users: np.ndarray, *, seed: int) -> np.ndarray:
    """Return a boolean mask [N] that chooses floor(n/5) of the n rows of each user, by a public seed.

    Raises `DataError` where that leaves no test example.

    >>> mask = fifth_of_each(np.repeat([4, 9], [10, 4]), seed=0)
    >>> int(mask[:10].sum()), int(mask[10:].sum())
    (2, 0)
    """
    _, numbers, counts = np.unique(users, return_inverse=True, return_counts=True)
    order = np.lexsort((np.random.default_rng(seed).random(len(users)), numbers))
    starts = np.cumsum(counts) - counts
    place = np.empty(len(users), dtype=np.int64)
    place[order] = np.arange(len(users)) - np.repeat(starts, counts)
    chosen: np.ndarray = place < counts[numbers] // 5
    if not chosen.any():
        raise DataError(
            "A fifth of each user's examples is the test set where the data have no split, but no user has five: the "
            f"largest has {counts.max(initial=0)}. Mark test examples with split = 1 and the others with 0."
        )
    return chosen


def public_classes(path: Path, train: np.ndarray, test: np.ndarray, classes: int | None) -> int:
    """Return the number of classes: the setting, or one more than the largest TEST label."""
    if classes is not None:
        check_at_least("classes", classes, 1)
    known = int(test.max()) + 1 if classes is None else classes
    largest = max(int(train.max()), int(test.max()))
    if largest >= known:
        raise DataError(
            f"{path} holds the label {largest} but there are {known} classes, as the "
            f"{'test labels show' if classes is None else 'setting says'}; "
            f"set classes to at least {largest + 1}."
        )
    return known


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
    if arrays["x"].ndim < 2 or count == 0:
        raise DataError(
            f"x in {path} has the shape {arrays['x'].shape}; it must be [N, ...] with N at least 1."
        )
    for name in ("y", "user", "split"):
        if name in arrays and arrays[name].shape != (count,):
            raise DataError(
                f"{name} in {path} has the shape {arrays[name].shape}; it must be ({count},), one for each x."
            )
    _check_types(path, arrays)


def _check_types(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Raise `DataError` unless every array has a usable type and usable values."""
    x, y, user = arrays["x"], arrays["y"], arrays.get("user")
    if x.dtype != np.uint8 and not np.issubdtype(x.dtype, np.floating):
        raise DataError(f"x in {path} is {x.dtype}; it must be uint8 (0 to 255) or a float type.")
    if x.dtype != np.uint8 and not all(
        np.isfinite(part).all() for part in np.array_split(x, 1 + x.nbytes // 2**26)
    ):
        raise DataError(f"x in {path} holds values that are not finite; all must be finite numbers.")
    if not np.issubdtype(y.dtype, np.integer):
        raise DataError(f"y in {path} is {y.dtype}; it must hold integer labels from 0.")
    if y.min() < 0:
        raise DataError(f"y in {path} holds the label {y.min()}; labels count from 0.")
    if user is not None and user.dtype.kind not in "iuUS":
        raise DataError(f"user in {path} is {user.dtype}; it must hold integers or strings.")
    if "split" in arrays and not np.isin(arrays["split"], (0, 1)).all():
        raise DataError(
            f"split in {path} holds {np.unique(arrays['split'])[:5].tolist()}; "
            "it must be 0 (train) or 1 (test)."
        )
