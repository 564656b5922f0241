"""Published files of the benchmarks as examples of users, whatever form they have.

They are converted in memory at every start where they are small. `fedmf data import SOURCE OUT` writes a folder with a folder
of .npy files for each split, which are mapped: all processes share them. They are the data, decoded and unencrypted; only
their owner may read the folder.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from client.data.clients import ArrayClients, stored_examples
from client.data.dataset import Dataset, Public, as_float32, describe_unit, pieces, shared_users
from client.data.own import SPLIT_SEED, fifth_of_each
from client.data.reading import reading, user_names, warn_unreadable
from client.data.sources import Files, Raw, Source, source_at
from fedmf.errors import DataError

ABOUT = "about.json"
# Bytes of files up to which they are converted at every start; larger ones are imported first.
SMALL = 1 << 26
# Examples that are in memory together when files are imported.
AT_ONCE = 1000

# Input and label of an example: arrays of numbers, or a text as bytes and 0.
Made = tuple[Any, Any]


@dataclass(frozen=True)
class Texts:
    """Texts [n] one behind the other in `text` [bytes]; `ends` [n] says where each ends."""

    text: np.ndarray
    ends: np.ndarray

    def __getitem__(self, row: int) -> bytes:
        return self.text[self.ends[row - 1] if row else 0 : self.ends[row]].tobytes()


@dataclass(frozen=True)
class Split:
    """Examples in the files' order, `x` [n, ...] and `y` [n, ...]; user i, called `names[i]`, owns `order[bounds[i]:bounds[i + 1]]`.

    The names are in alphabetical order, and each user has an example. `known_by` is that of `ArrayClients`.
    """

    x: Any
    y: np.ndarray
    order: np.ndarray
    bounds: np.ndarray
    names: np.ndarray
    known_by: np.ndarray | None = None

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> "Split":
        """Return the examples whose arrays have these names: those of the fields, or in place of x those of `Texts`."""
        x = arrays["x"] if "x" in arrays else Texts(arrays["text"], arrays["ends"])
        return cls(x, *(arrays[name] for name in ("y", "order", "bounds", "names")))

    @property
    def users(self) -> np.ndarray:
        """The user of each example in the files' order, as a place in `names`; -1: of none, since it was left out."""
        users = np.full(len(self.y), -1, dtype=np.int64)
        users[self.order] = np.repeat(np.arange(len(self.names)), np.diff(self.bounds))
        return users

    def only(self, chosen: np.ndarray) -> "Split":
        """Return the examples of which `chosen` [n] is true, and the users who have some."""
        kept = self.order[chosen[self.order]]
        held, counts = np.unique(self.users[kept], return_counts=True)
        bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return replace(self, order=kept, bounds=bounds, names=self.names[held])

    def shuffled(self) -> np.ndarray:
        """Return the examples user after user, the users in an order drawn from a public seed."""
        drawn = np.random.default_rng(SPLIT_SEED).permutation(len(self.names))
        return np.concatenate([self.order[self.bounds[user] : self.bounds[user + 1]] for user in drawn])


@dataclass(frozen=True)
class Held:
    """The files of a benchmark at `path`, in one `form`; `split(name)` is one of their splits, converted now or mapped."""

    path: Path | str
    form: str
    split: Callable[[str], Split]

    def train_and_test(
        self, public: Public | None, prefix: str = "", choose: Callable[[Split], Split] = lambda split: split
    ) -> tuple[Split, Split | None, np.ndarray]:
        """Return (training examples, test examples, the rows of these in their order); with `public` None and no rows.

        TFF and LEAF have splits of these names behind `prefix`; TFF's test users are in an order drawn by a public seed. Of
        the hub's one split a fifth of each user's examples is the test set, drawn likewise. `choose` says which are used.
        """
        if self.form == "hub":
            whole = choose(self.split("all"))
            rows = np.sort(whole.order)
            drawn = fifth_of_each(whole.users[rows], seed=SPLIT_SEED, names=whole.names)
            is_test = np.zeros(len(whole.y), dtype=bool)
            is_test[rows[drawn]] = True
            if public is None and not drawn.any():
                raise DataError(
                    f"{self.path} has no user with five examples, of which one could be a test example."
                )
            return whole.only(~is_test), None if public else whole.only(is_test), rows[drawn]
        training = choose(self.split(f"{prefix}train"))
        if public is not None:
            return training, None, np.empty(0, np.int64)
        test = choose(self.split(f"{prefix}test"))
        return training, test, test.shuffled() if self.form == "tff" else np.sort(test.order)


@dataclass(frozen=True)
class Benchmark:
    """A benchmark by its `name`, its `files`, whose examples a client has, and what it makes of columns of the files.

    `convert(columns)` raises `DataError` for an example that cannot be read; `blank[form]`, with the label `UNREADABLE`, takes
    its place.
    """

    name: str
    files: Files
    convert: Callable[[Mapping[str, Any]], Made]
    blank: Mapping[str, Made]
    person: str
    licence: str
    source: str

    def dataset(
        self,
        train: Split,
        test: Split | None,
        rows: np.ndarray,
        convert: Callable[[np.ndarray], np.ndarray],
        *,
        input_shape: tuple[int, ...],
        classes: int,
        task: str,
        uncovered: tuple[str, ...] = (),
        uncounted: tuple[int, ...] = (),
        note: Callable[[np.ndarray], str] | None = None,
    ) -> Dataset:
        """Return the dataset of training users, and of the test examples `rows`, which `convert` turns into a model's inputs.

        Users whom both splits share are counted; `note` describes the test targets.
        """
        notes: tuple[str, ...] = ()
        examples = Public.of({"shape": input_shape, "classes": classes, "task": task}).none()
        if test is not None:
            examples = stored_examples(test.x, test.y, rows, convert)
            uncovered += shared_users(train.names, test.names)
            notes = (note(examples.y),) if note else ()
        return Dataset(
            name=self.name,
            clients=ArrayClients(
                train.x, train.y, train.order, train.bounds, convert, known_by=train.known_by
            ),
            test=examples,
            input_shape=input_shape,
            classes=classes,
            task=task,
            licence=self.licence,
            source=self.source,
            unit=describe_unit(self.person),
            uncovered=uncovered,
            uncounted=uncounted,
            person=self.person,
            notes=notes,
        )

    def held(self, path: str | None) -> Held:
        """Return the imported folder, or the published files, at `path`. Raises `DataError` with the files to put where."""
        files = ", ".join(
            file for split, (_, file) in self.files.splits.items() if not split.startswith("digits_")
        )
        hub = f" the files of {self.files.hub} on the hub," if self.files.hub else ""
        needed = (
            f"Dataset {self.name} needs files: set path to a folder of TFF's {files}, to TFF's {self.files.sqlite} "
            f"(~/.tff where TFF has put it), to LEAF's folder,{hub} or to a folder that `fedmf data import "
            f"{self.files.hub or 'SOURCE'} FOLDER` wrote."
        )
        if path is None:
            raise DataError(needed)
        place = Path(path)
        if not place.exists():
            raise DataError(f"path is {path}, which does not exist. {needed}")
        if (place / ABOUT).is_file():
            with reading(place / ABOUT, "JSON"):
                about = json.loads((place / ABOUT).read_text())
                if about["dataset"] != self.name:
                    raise DataError(
                        f"{path} holds {about['dataset']}, not {self.name}; set dataset to it, or path to another folder."
                    )
                return Held(path, about["form"], partial(_imported, place))
        source = source_at(place, self.files)
        if source.form not in self.blank:
            raise DataError(f"{path} holds files of another dataset. {needed}")
        size = sum(file.stat().st_size for file in source.paths if file.is_file())
        if size > SMALL:
            raise DataError(
                f"{source.where} holds {size >> 20} MB, too much to be converted at every start. Import it once with "
                f"`fedmf data import {source.where} FOLDER`, and set path to FOLDER."
            )
        return Held(source.where, source.form, lambda split: Split.of(self.arrays(source, split)))

    def write(self, source: Source, folder: Path, advance: Callable[[int], object]) -> None:
        """Write the files into an empty `folder`, which `held` maps; see `arrays`."""
        for split in source.splits or ["train"]:  # which states why there is none
            (folder / split).mkdir()
            with TemporaryDirectory(dir=folder / split) as raw:
                for name, array in self.arrays(source, split, Path(raw), advance).items():
                    np.save(folder / split / f"{name}.npy", array)
        (folder / ABOUT).write_text(json.dumps({"dataset": self.name, "form": source.form}))

    def arrays(
        self,
        source: Source,
        split: str,
        folder: Path | None = None,
        advance: Callable[[int], object] = lambda count: None,
    ) -> dict[str, np.ndarray]:
        """Return the arrays of `Split` of one split of the files, in memory, or mapped from files in a `folder`.

        An example of a training user that cannot be read stays, with the label `UNREADABLE`; one of a test split is a
        `DataError`. `advance` is given the number of examples that were read.
        """
        rows, places, noted, arrays = (
            source.read(split),
            dict[str, int](),
            list[str](),
            dict[str, np.ndarray](),
        )
        while part := self._part(islice(rows, AT_ONCE if folder else None), source, places, noted):
            # The hub has one split: a fifth of it is the test set, which is checked as such.
            if noted and ("test" in split or split == "heldout"):
                raise DataError(noted[0])
            arrays = part
            if folder:
                for name, array in part.items():
                    with (folder / name).open("ab") as file:
                        file.write(array.tobytes())
            advance(len(part["y"]))
        warn_unreadable(source.where, noted)
        if not arrays:
            raise DataError(f"{source.where} holds no examples in its split {split}; it must hold some.")
        if folder:
            arrays = {name: _mapped(folder / name, array) for name, array in arrays.items()}
        if "x" in arrays:
            arrays["x"] = as_bytes(arrays["x"])
        else:
            arrays["ends"] = np.cumsum(arrays["ends"])
        arrays["names"], rank = np.unique(np.array([*places]), return_inverse=True)
        owners = rank[arrays.pop("user")]
        arrays["order"] = np.argsort(owners, kind="stable")
        arrays["bounds"] = np.concatenate([[0], np.cumsum(np.bincount(owners))])
        return arrays

    def _part(
        self, rows: Iterable[Raw], source: Source, places: dict[str, int], noted: list[str]
    ) -> dict[str, np.ndarray]:
        """Return the inputs, labels and users, by their `places` among the names, of some examples; `noted`: what is unreadable."""
        users, made = [], []
        for raw in rows:
            users.append(raw.user)
            try:
                if raw.wrong:
                    raise DataError(raw.wrong)
                made.append(self.convert(raw.columns))
            except DataError as error:
                noted.append(f"{raw.where}, user {raw.user!r}: {error}")
                made.append(self.blank[source.form])
        if not made:
            return {}
        names = user_names(source.where, users).tolist()
        x, y = zip(*made, strict=True)
        user = [places.setdefault(name, len(places)) for name in names]
        arrays = {"y": np.array(y), "user": np.array(user, np.int32)}
        if isinstance(x[0], bytes):
            ends = np.array([len(text) for text in x], np.int64)
            return arrays | {"text": np.frombuffer(b"".join(x), np.uint8), "ends": ends}
        return arrays | {"x": np.stack(x)}


def _mapped(path: Path, part: np.ndarray) -> np.ndarray:
    """Return the whole array, of whose parts [n, ...] `part` was the last to be written into a file; an empty one has none."""
    return (np.memmap(path, part.dtype, "r") if path.stat().st_size else part).reshape(-1, *part.shape[1:])


def _imported(path: Path, split: str) -> Split:
    """Return one split of a folder that was imported.

    Raises `DataError` where the arrays do not fit together; `order`, which may be gigabytes, is not read here.
    """
    folder = path / split
    if not folder.is_dir():
        raise DataError(
            f"{path} holds no split {split}: the files that were imported have none. Import files that do."
        )
    with reading(folder, "an imported split"):
        least = 2 * np.lib.format.ARRAY_ALIGN  # an array without bytes cannot be mapped
        arrays = {
            file.stem: np.load(
                file, mmap_mode="r" if file.stat().st_size > least else None, allow_pickle=False
            )
            for file in folder.glob("*.npy")
        }
        held = Split.of(arrays)
        lengths = {len(arrays[name]) for name in ("x", "ends", "y", "order") if name in arrays}
        bounds = held.bounds
        fits = (
            bounds.dtype == np.int64
            and bounds.shape == (len(held.names) + 1,)
            and bounds[0] == 0
            and lengths == {bounds[-1]}
            and bool((np.diff(bounds) > 0).all())
        )
    if not fits:
        raise DataError(f"{folder} holds arrays that do not fit together; import the files again.")
    return held


def as_bytes(x: np.ndarray) -> np.ndarray:
    """Return float32 numbers [n, ...] as the uint8 of which `as_float32` makes them again to the bit; `x` where one is another.

    >>> as_bytes(np.array([0, 1, 0.2], dtype=np.float32)).tolist(), as_bytes(np.array([0.25], dtype=np.float32)).tolist()
    ([0, 255, 51], [0.25])
    """
    if x.dtype != np.float32:
        return x
    made = []
    for part in pieces(x):
        with np.errstate(invalid="ignore"):
            made.append(np.rint(part * np.float32(255)).astype(np.uint8))
        if as_float32(made[-1]).tobytes() != part.tobytes():  # to the bit: 0 and -0 are equal numbers
            return x
    return np.concatenate(made)
