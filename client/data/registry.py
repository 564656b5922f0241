"""Every dataset by name: who loads it, under which licence, and from where; and whose files are imported."""

import inspect
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from client.data import arrays, benchmarks, bundled
from client.data.dataset import Dataset, Public
from client.data.inspection import inspected
from client.data.limits import check_counted, hold_out, limited
from client.data.own import LICENCE, TEXT_SETTINGS, OwnSettings
from client.data.partitioned import load_partitioned
from client.data.reading import reading
from client.data.text import load_lines
from client.imports import check_takes, import_maker, need, own_code
from fedmf.checks import check_choice
from fedmf.errors import DataError, SettingError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """One line of the listing: how to load a dataset, and what to know before doing so; by default of your own files."""

    load: Callable[..., Dataset]
    summary: str
    licence: str = LICENCE
    source: str = "a file of the user"
    test_users: str = "counted at load, and named in the privacy statement"


def _own_table(name: str, *settings: str) -> Callable[..., Dataset]:
    """Return the loader `name` of your own arrays, texts or tables, which takes a path and these fields of `OwnSettings`."""

    def load_own(path: str, *, public: Public | None = None, **given: Any) -> Dataset:
        own: Any = {"by_user_text": load_lines, "by_user_npz": arrays.load_arrays}.get(name)
        own = own or need("client.data.tables", f"Reading {path}").load_table
        return own(name, Path(path), OwnSettings(**given), public)  # type: ignore[no-any-return]

    return _taking(load_own, *settings)


def _taking(loader: Callable[..., Dataset], *settings: str) -> Callable[..., Dataset]:
    """Return a loader that takes `**given`, with these fields of `OwnSettings` in their place in its signature."""
    *named, _ = inspect.signature(loader, eval_str=True).parameters.values()
    fields = inspect.signature(OwnSettings, eval_str=True).parameters.values()
    taken = [field.replace(kind=field.KEYWORD_ONLY) for field in fields if field.name in settings]
    loader.__signature__ = inspect.Signature([*named, *taken])  # type: ignore[attr-defined]
    return loader


def _source_of(path: Path) -> str:
    """Return which dataset of your own reads what is at `path`: by its name, or what the folder holds."""
    if path.is_dir():
        for name, patterns in _FOLDERS.items():
            if any(True for pattern in patterns for _ in path.glob(pattern)):
                return name
        return "by_user_images"
    return next((_FILES[end] for end in path.suffixes if end in _FILES), "by_user_csv")


def _read_any(path: str, has_users: bool, given: Mapping[str, Any]) -> Dataset:
    """Return the examples at `path`, in any form of your own data; `given` are settings of that form."""
    source = _source_of(Path(path))
    given = {key: value for key, value in given.items() if value != getattr(OwnSettings, key)}
    check_takes(DATASETS[source].load, given, who=f"{path}, read as dataset {source},")
    return DATASETS[source].load(path, **given, has_users=has_users)


# What every dataset can be cut to; a loader that takes one of them does it itself.
LIMITS = ("max_examples_per_user", "examples_per_client", "max_test_examples")
# Which clients of every dataset train: no loader's business.
HELD_OUT = ("held_out", "held_out_use")
_TEST = ("test", "test_share")
_COLUMNS = ("user", "label", "split", "task", "classes", "labels", *_TEST)
_CSV = ("delimiter", "header", "comment")
_TYPED = (*_COLUMNS, "features", "text", "image", *TEXT_SETTINGS)
_FILES = {".npz": "by_user_npz", ".parquet": "by_user_parquet", ".jsonl": "by_user_text"}
# What a file is called, or a folder holds, of each form of your own data; CSV and pictures otherwise.
_FOLDERS = {
    "by_user_hub": ("dataset_dict.json", "dataset_info.json"),
    "by_user_npz": ("*.npy", "*-idx?-ubyte*", "*.idx?-ubyte*"),
    "by_user_images": ("metadata.csv", "metadata.parquet"),
    "by_user_csv": ("*.csv",),
    "by_user_parquet": ("*.parquet", "data/*.parquet"),
}

DATASETS: dict[str, Entry] = {
    "digits": Entry(
        bundled.load_digits,
        "Scanned digits that ship with scikit-learn: 1437 clients with one 8 x 8 image each, 360 test images.",
        **bundled.DIGITS,
        test_users="no users: each image is a client, and is in one split only",
    ),
    "synthetic": Entry(
        bundled.load_synthetic,
        "Made-up points of up to a billion clients, drawn when needed, so that size costs neither time nor memory.",
        **bundled.SYNTHETIC,
        test_users="no users: test points belong to no client",
    ),
    "by_user_npz": Entry(
        _own_table("by_user_npz", "task", "classes", *_TEST),
        "Custom arrays x, y, user and optionally split, in an .npz file or a folder of .npy files.",
    ),
    "by_user_text": Entry(
        _own_table("by_user_text", *TEXT_SETTINGS, *_TEST),
        "Custom texts: JSON lines with user and text (or tokens).",
    ),
    "by_user_csv": Entry(
        _own_table("by_user_csv", *_COLUMNS, "features", "text", *_CSV, *TEXT_SETTINGS),
        "Custom table: CSV with a user and a label or text in each row, columns by name.",
    ),
    "by_user_parquet": Entry(
        _own_table("by_user_parquet", *_TYPED),
        "Custom table: parquet with a user and a label or text in each row, columns by name.",
    ),
    "by_user_images": Entry(
        _own_table("by_user_images", *_COLUMNS, "table", "file"),
        "A folder of pictures: USER/LABEL/FILE, or a table of files, users and labels; decoded when a client trains.",
    ),
    "by_user_hub": Entry(
        _own_table("by_user_hub", *_TYPED),
        "A Hugging Face dataset on disk, as datasets' save_to_disk wrote it, with columns by name; memory-mapped.",
    ),
    "partitioned": Entry(
        _taking(
            partial(load_partitioned, _read_any),
            *(name for name in _TYPED if name != "test"),
            *_CSV,
            "table",
            "file",
        ),
        "Custom files without users, in any form above, divided among made-up clients by a partitioner of flwr-datasets.",
        test_users="no users: clients are made up; with partitioner=grouped counted at load",
    ),
    "femnist": Entry(
        benchmarks.load_femnist,
        "Federated EMNIST: handwritten digits and letters of 3,400 writers, 62 classes; TFF, LEAF or hub files.",
        benchmarks.FEMNIST.licence,
        benchmarks.FEMNIST.source,
        "all train too; counted at load, and named in the privacy statement",
    ),
    "shakespeare": Entry(
        benchmarks.load_shakespeare,
        "Shakespeare's plays by role, for next-character prediction; TFF, LEAF or hub files.",
        benchmarks.SHAKESPEARE.licence,
        benchmarks.SHAKESPEARE.source,
        "all train too; counted at load, and named in the privacy statement",
    ),
    "stackoverflow": Entry(
        benchmarks.load_stackoverflow,
        "Stack Overflow, next-word prediction: 342,477 users, 135.8 M sentences; TFF's sqlite or HDF5 files.",
        benchmarks.STACKOVERFLOW.licence,
        benchmarks.STACKOVERFLOW.source,
        "about 97 % train too, by TFF's counts, and none with test=heldout; counted at load, and named in the privacy "
        "statement",
    ),
}


def load(
    name: str,
    *,
    path: str | None = None,
    examples_per_client: int | None = None,
    max_examples_per_user: int | None = None,
    max_test_examples: int | None = None,
    vocabulary: str | None = None,
    held_out: float | None = None,
    held_out_use: str = "score",
    public: Public | None = None,
    **settings: Any,
) -> Dataset:
    """Return the dataset called `name`, a name of the listing or an import path `package.module:function`.

    The function must be annotated with `-> Dataset`. Settings that are None are left to the loader. Of each user the
    first `max_examples_per_user` examples are used; then users are cut into clients of `examples_per_client`, and the
    unit of privacy with them; `max_test_examples` are drawn of the test set by a public seed. A loader that takes one
    of these three does it itself. `held_out` is a share of the clients, for `held_out_use`: see `hold_out`.

    With `public`, which `Dataset.public` is in the process that has the test set, clients alone are made, for a process
    that scores nothing: the test set is empty, and an example that does not fit fails its client. A loader that takes
    `public` reads no test set.

    Raises `SettingError` for an unknown name or a setting that the loader does not take; `DataError` for data that
    are missing or malformed, for a test set that cannot be right, and for whatever a loader of the user's own raises.
    The examples of a client are checked when it is read: see `client.data.limits.limited`.
    """
    loader = _loader(name)
    limits = dict(zip(LIMITS, (max_examples_per_user, examples_per_client, max_test_examples), strict=True))
    given = _given(name, loader, {"path": path, "vocabulary": vocabulary, **limits, **settings})
    taken = inspect.signature(loader).parameters
    limits = {key: value for key, value in limits.items() if key not in taken}
    is_own = ":" in name
    if public is not None:
        for key in () if is_own else ("classes", "task"):
            if given.get(key, getattr(public, key)) != getattr(public, key):
                raise SettingError(
                    f"{key} is {given[key]}, but public says {getattr(public, key)}; leave it out."
                )
        if "public" in taken:
            given["public"] = public
    for key in ("path", "vocabulary"):
        if key in given:
            given[key] = os.path.expanduser(given[key])
            if not is_own:
                with reading(given[key], "a file or folder"):  # a name may be too long to be one
                    Path(given[key]).exists()
    try:
        with own_code(f"{name} failed", DataError) if is_own else nullcontext():
            dataset = loader(**given)
    except DataError as error:
        if is_own and error.__cause__ is not None:  # what the user's own code raised, with its traceback
            log.error("%s failed:", name, exc_info=error.__cause__)
        raise
    if not isinstance(dataset, Dataset):
        raise DataError(f"{name} returned {type(dataset).__name__}; it must return a client.data.Dataset.")
    dataset = limited(dataset, public, path=path, **limits)
    if public is None:
        dataset = inspected(dataset, is_whole=limits.get("max_test_examples") is None)
    if held_out is not None:
        dataset = hold_out(dataset, held_out, held_out_use, max_test_examples)
    if public is None:
        check_counted(dataset)
    return dataset


def check(name: str, **arguments: Any) -> None:
    """Raise `SettingError` for arguments with which `load` could load no data, whatever the data are: none are read.

    Of a loader of the user's own nothing is said, because it would have to be imported.
    """
    if ":" not in name:
        _given(name, _loader(name), arguments)


def _given(name: str, loader: Callable[..., Dataset], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of the arguments of `load` its loader is given. Raises `SettingError` where it lacks or ignores one."""
    parameters = inspect.signature(loader).parameters
    given = {
        key: value
        for key, value in arguments.items()
        if value is not None and key not in HELD_OUT and (key in parameters or key not in LIMITS)
    }
    most = arguments.get("max_examples_per_user")
    cuts_itself = ":" in name and "examples_per_client" in given and "max_examples_per_user" not in given
    if cuts_itself and most is not None:
        raise SettingError(
            f"max_examples_per_user is {most}, but {name} takes examples_per_client and cuts its "
            "users itself; let it take max_examples_per_user too, or neither."
        )
    check_takes(loader, given, who=f"dataset {name}")
    for key, parameter in parameters.items():
        is_needed = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        if is_needed and key not in given:
            raise SettingError(f"{key} is missing; dataset {name} needs it.")
    return given


def _loader(name: str) -> Callable[..., Dataset]:
    if ":" in name:
        return import_maker(name, "name", Dataset)
    check_choice("name", name, (*DATASETS, "package.module:function"))
    return DATASETS[name].load
