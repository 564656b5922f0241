"""What the benchmarks have in common: their files as examples of users, whatever form they have.

They are converted in memory at every start where they are small. `fedmf data import SOURCE OUT` writes a folder with a folder
of .npy files for each split, which are mapped: all processes share them. They are the data, decoded and unencrypted; only
their owner may read the folder.
"""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, cast

import numpy as np

from client.data.clients import ArrayClients, stored_examples
from client.data.dataset import UNREADABLE, Dataset, Public, as_float32, describe_unit, shared_users
from client.data.own import SPLIT_SEED, fifth_of_each
from client.data.reading import Unreadable, reading, user_names
from client.data.rows import pieces
from client.data.sources import Files, Raw, Source, examples, source_at
from fedmf.errors import DataError

ABOUT = "about.json"
FLOATS, INTEGERS = "f", "iu"  # numpy's letters
SMALL = 1 << 26
"""Bytes of files up to which they are converted at every start; larger ones are imported first."""

Converted = tuple[Any, np.ndarray]
"""Inputs and labels of n examples: arrays [n, ...], or a list of n texts as bytes and marks [n]."""
Convert = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Texts:
    """Texts [n] one behind the other in `text` [bytes]; `ends` [n] says where each ends."""

    text: np.ndarray
    ends: np.ndarray

    def __getitem__(self, row: int) -> bytes:
        """Return one text."""
        return self.text[self.ends[row - 1] if row else 0 : self.ends[row]].tobytes()


@dataclass(frozen=True)
class Split:
    """Examples in the files' order, `x` [n, ...] and `y` [n, ...]; user i, called `names[i]`, owns `order[bounds[i]:bounds[i + 1]]`.

    The names are in alphabetical order, and each user has an example.
    """

    x: Any
    y: np.ndarray
    order: np.ndarray
    bounds: np.ndarray
    names: np.ndarray

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> "Split":
        """Return the examples whose arrays have these names: those of the fields, or in place of x those of `Texts`."""
        x = arrays["x"] if "x" in arrays else Texts(arrays["text"], arrays["ends"])
        return cls(x, *(arrays[name] for name in ("y", "order", "bounds", "names")))

    @property
    def counts(self) -> np.ndarray:
        """How many examples each user has, int64 [users]."""
        return np.diff(self.bounds)

    @property
    def users(self) -> np.ndarray:
        """The user of each example in the files' order, as a place in `names`; -1: of none, since it was left out."""
        users = np.full(len(self.y), -1, dtype=np.int64)
        users[self.order] = np.repeat(np.arange(len(self.names)), self.counts)
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

    def parted(
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
    """A benchmark by its `name`, its `files`, whose examples a client holds, and what it makes of columns of the files.

    `convert(columns)` raises `DataError` for what cannot be read; `blank(n, form)` are n examples in its place, which have
    the label `UNREADABLE`.
    """

    name: str
    files: Files
    convert: Callable[[Mapping[str, Any]], Converted]
    blank: Callable[[int, str], Converted]
    person: str
    licence: str
    source: str

    def dataset(
        self,
        train: Split,
        test: Split | None,
        rows: np.ndarray,
        convert: Convert,
        *,
        input_shape: tuple[int, ...],
        classes: int,
        task: str,
        clients: type[ArrayClients] = ArrayClients,
        uncovered: tuple[str, ...] = (),
        uncounted: tuple[int, ...] = (),
        note: Callable[[np.ndarray], str] | None = None,
    ) -> Dataset:
        """Return the data set of training users, and of the test examples with the numbers `rows`.

        `convert` turns stored inputs into what a model takes. Users whom both splits share are counted, and `note` is of the
        test targets.
        """
        notes, shared = tuple[str, ...](), tuple[str, ...]()
        if test is None:
            examples = Public.of({"shape": input_shape, "classes": classes, "task": task}).none()
        else:
            examples = stored_examples(test.x, test.y, rows, convert)
            shared = shared_users(train.names, test.names)
            notes = () if note is None else (note(examples.y),)
        return Dataset(
            name=self.name,
            clients=clients(train.x, train.y, train.order, train.bounds, convert),
            test=examples,
            input_shape=input_shape,
            classes=classes,
            task=task,
            licence=self.licence,
            source=self.source,
            unit=describe_unit(self.person),
            uncovered=(*uncovered, *shared),
            uncounted=uncounted,
            person=self.person,
            notes=notes,
        )

    def held(self, path: str | None) -> Held:
        """Return what is at `path`: a folder that was imported, or published files small enough to be converted at every start.

        Raises `DataError` with the files to put where.
        """
        if path is None:
            raise DataError(self._where())
        place = Path(path)
        if not place.exists():
            raise DataError(f"path is {path}, which does not exist. {self._where()}")
        if (place / ABOUT).is_file():
            with reading(place / ABOUT, "JSON"):
                about = json.loads((place / ABOUT).read_text())
                if about["dataset"] != self.name:
                    raise DataError(
                        f"{path} holds {about['dataset']}, not {self.name}; set dataset to it, or path to another folder."
                    )
                return Held(path, about["form"], partial(_mapped, place))
        source = source_at(place, self.files)
        size = sum(file.stat().st_size for file in source.paths if file.is_file())
        if size > SMALL:
            raise DataError(
                f"{source.where} holds {size >> 20} MB, too much to be converted at every start. Import it once with "
                f"`python -m experiments.data import {source.where} FOLDER`, and set path to FOLDER."
            )
        return Held(source.where, source.form, lambda split: Split.of(self.arrays(source, split)))

    def _where(self) -> str:
        """Return which files to put where."""
        files = ", ".join(
            file for split, (_, file) in self.files.splits.items() if not split.startswith("digits_")
        )
        hub = f" the files of {self.files.hub} on the hub," if self.files.hub else ""
        return (
            f"Dataset {self.name} needs files: set path to a folder of TFF's {files}, to TFF's {self.files.sqlite} "
            f"(~/.tff where TFF has put it), to LEAF's folder,{hub} or to a folder that `python -m experiments.data import "
            f"{self.files.hub or 'SOURCE'} FOLDER` wrote."
        )

    def write(self, source: Source, folder: Path, advance: Callable[[int], object]) -> None:
        """Write the files into an empty `folder`, which `held` maps; see `arrays`."""
        for split in source.splits or ["train"]:  # which says why there is none
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
        `DataError`. `advance` is told how many examples were read.
        """
        arrays, users = self._read(source, split, folder, advance)
        if "x" in arrays:
            arrays["x"] = as_bytes(arrays["x"], folder)
        arrays["names"], rank = np.unique(np.array(users), return_inverse=True)
        owners = rank[arrays.pop("user")]
        if "ends" in arrays:
            arrays["ends"] = np.cumsum(arrays["ends"])
        arrays["order"] = np.argsort(owners, kind="stable")
        arrays["bounds"] = np.concatenate([[0], np.cumsum(np.bincount(owners))])
        return arrays

    def _read(
        self, source: Source, split: str, folder: Path | None, advance: Callable[[int], object]
    ) -> tuple[dict[str, np.ndarray], list[str]]:
        """Return (inputs, labels and users, as places among the names, of the examples of a split; these names)."""
        # Of the hub's examples, of which a fifth is the test set, those are refused with it.
        unreadable = Unreadable(source.where, is_public="test" in split or split == "heldout")
        numbers: dict[str, int] = {}
        files: dict[str, BinaryIO] = {}
        found: dict[str, np.ndarray] = {}
        with ExitStack() as opened:
            for raw in source.read(split):
                if not len(raw.users):
                    continue
                x, y = self._converted(raw, source.form, unreadable)
                names = user_names(raw.where, raw.users).tolist()
                user = np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int32)
                found = {"y": y, "user": user}
                if isinstance(x, list):
                    found["text"] = np.frombuffer(b"".join(x), np.uint8)
                    found["ends"] = np.array([len(text) for text in x], np.int64)
                else:
                    found["x"] = x
                for name, array in found.items():
                    if name not in files:
                        files[name] = opened.enter_context(_new_file(folder, name))
                    files[name].write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
                advance(len(names))
            unreadable.warn()
            if not files:
                raise DataError(f"{source.where} holds no examples in its split {split}; it must hold some.")
            return {name: _finished(file, found[name]) for name, file in files.items()}, list(numbers)

    def _converted(self, raw: Raw, form: str, unreadable: Unreadable) -> Converted:
        """Return what a benchmark makes of some examples; those that fail are blank, and `unreadable`."""
        count = len(raw.users)
        if raw.wrong:
            unreadable.note(f"{raw.where}: {raw.wrong}")
            return self.blank(count, form)
        try:
            return self._made(raw.columns)
        except DataError:  # once more, to find those that fail
            parts = []
            for row in range(count):
                try:
                    one = {name: column[row : row + 1] for name, column in raw.columns.items()}
                    parts.append(self._made(one))
                except DataError as error:
                    unreadable.note(f"An example of {raw.users[row]!r} in {raw.where}: {error}")
                    parts.append(self.blank(1, form))
        x = [part for part, _ in parts]
        whole = [text for texts in x for text in texts] if isinstance(x[0], list) else np.concatenate(x)
        return whole, np.concatenate([y for _, y in parts])

    def _made(self, columns: Mapping[str, Any]) -> Converted:
        """Return what a benchmark makes of columns, or of serialised examples."""
        if "example" in columns:
            columns = examples(columns["example"], self.files.fields)
        return self.convert(columns)


def _mapped(path: Path, split: str) -> Split:
    """Return one split of a folder that was imported."""
    folder = path / split
    if not folder.is_dir():
        raise DataError(
            f"{path} holds no split {split}: the files that were imported have none. Import files that do."
        )
    with reading(folder, "an imported split"):
        return Split.of({file.stem: _map(file) for file in folder.glob("*.npy")})


def _map(path: Path) -> np.ndarray:
    """Return the array in a .npy file, mapped; one without bytes cannot be."""
    empty = path.stat().st_size <= np.lib.format.ARRAY_ALIGN * 2
    array: np.ndarray = np.load(path, mmap_mode=None if empty else "r", allow_pickle=False)
    return array


def as_bytes(x: np.ndarray, folder: Path | None = None) -> np.ndarray:
    """Return float32 numbers [n, ...] as the uint8 of which `as_float32` makes them again to the bit; `x` where one is another.

    The bytes are in memory, or mapped from a file in a `folder`.

    >>> as_bytes(np.array([0, 1, 0.2], dtype=np.float32)).tolist(), as_bytes(np.array([0.25], dtype=np.float32)).tolist()
    ([0, 255, 51], [0.25])
    """
    if x.dtype != np.float32:
        return x
    with _new_file(folder, "bytes") as file:
        for part in pieces(x):
            with np.errstate(invalid="ignore"):
                made = np.rint(part * np.float32(255)).astype(np.uint8)
            if as_float32(made).tobytes() != part.tobytes():  # to the bit: 0 and -0 are equal numbers
                return x
            file.write(made.data)
        return _finished(file, made)


def _new_file(folder: Path | None, name: str) -> BinaryIO:
    """Return a new file in a folder, or one in memory."""
    return (folder / name).open("w+b") if folder else cast(BinaryIO, io.BytesIO())


def _finished(file: BinaryIO, part: np.ndarray) -> np.ndarray:
    """Return the whole array whose parts [n, ...], such as `part`, were written into a file, mapped if it is on a disk."""
    if not file.tell():  # which cannot be mapped
        return part[:0]
    file.flush()
    in_memory = isinstance(file, io.BytesIO)
    whole = np.frombuffer(file.getvalue(), part.dtype) if in_memory else np.memmap(file.name, part.dtype, "r")  # type: ignore[attr-defined]
    return whole.reshape(-1, *part.shape[1:])


def numbers(values: Any, kinds: str, shape: tuple[int, ...] = ()) -> np.ndarray:
    """Return values [n] as numbers [n, *shape] of one of numpy's `kinds`; raise `DataError` for one that is not."""
    with reading("It", f"{prod(shape)} numbers"):  # numpy's own view of lists of many lengths and types
        array = np.asarray(values)
    if array.dtype.kind not in kinds or array.size != len(values) * prod(shape):
        raise DataError(f"It must hold {prod(shape)} {'pixels' if shape else 'whole number as its label'}.")
    return array.reshape(-1, *shape)


def texts(values: Sequence[Any]) -> Converted:
    """Return values that are texts, as bytes of UTF-8; raise `DataError` for one that is none."""
    for value in values:
        if not isinstance(value, bytes):
            raise DataError("A stored example holds what is no text; it must be bytes of UTF-8.")
        with reading("A stored text", "UTF-8"):
            value.decode()
    return [bytes(value) for value in values], np.zeros(len(values), np.int8)


def no_texts(count: int, form: str) -> Converted:
    """Return texts that cannot be read."""
    return [b""] * count, np.full(count, UNREADABLE, np.int8)
