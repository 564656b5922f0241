"""What the benchmarks have in common: their files as examples of users, whatever form they have."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from client.data.arrays import pieces
from client.data.imported import Grown, Split, as_bytes, compact, new_folder, written
from client.data.reading import Unreadable, reading, user_names
from client.data.sources import Files, Raw, Source, download, examples, source_at
from client.data.split import SPLIT_SEED, fifth_of_each
from fedmf.errors import DataError

ABOUT = "about.json"
SMALL = 1 << 26
"""Bytes of files up to which they are converted at every start; larger ones are imported first."""

Converted = tuple[Any, np.ndarray]
"""Inputs and labels of n examples: arrays [n, ...], or a list of n texts as bytes and marks [n]."""


@dataclass(frozen=True)
class Held:
    """The files of a benchmark as `Split`s, each read when it is asked for; `form` is their source's."""

    path: Path | str
    form: str
    split: Callable[[str], Split]


@dataclass(frozen=True)
class Benchmark:
    """A benchmark by its `name`, its `files`, and what it makes of columns that these hold.

    `convert(columns)` raises `DataError` for what cannot be read; `blank(n, form)` are n examples in its place, which have
    the label `UNREADABLE`.
    """

    name: str
    files: Files
    convert: Callable[[Mapping[str, Any]], Converted]
    blank: Callable[[int, str], Converted]

    def held(self, path: str | None, may_download: bool = False) -> Held:
        """Return what lies at `path`: a folder that was imported, or published files small enough to be converted at every start.

        Without a path the hub's are downloaded, if they may be. Raises `DataError` with the files to put where.
        """
        if path is None:
            if not may_download:
                raise DataError(self._where())
            return self._of(download(self.files))
        place = Path(path)
        with reading(path, "a file or folder"):  # a name may be too long to be one
            if not place.exists():
                raise DataError(f"path is {path}, which does not exist. {self._where()}")
        if (place / ABOUT).is_file():
            return _imported(place, self.name)
        source = source_at(place, self.files)
        size = sum(file.stat().st_size for file in source.paths if file.is_file())
        if size > SMALL:
            raise DataError(
                f"{source.where} holds {size >> 20} MB, too much to be converted at every start. Import it once with "
                f"`python -m experiments.data import {source.where} FOLDER`, and set path to FOLDER."
            )
        return self._of(source)

    def _of(self, source: Source) -> Held:
        return Held(source.where, source.form, partial(self.gathered, source))

    def _where(self) -> str:
        """Return which files to put where."""
        files = ", ".join(
            file for split, (_, file) in self.files.splits.items() if not split.startswith("digits_")
        )
        hub = f" the files of {self.files.hub} on the hub," if self.files.hub else ""
        return (
            f"Dataset {self.name} needs files: set path to a folder of TFF's {files}, to TFF's {self.files.sqlite} "
            f"(~/.tff where TFF has put it), to LEAF's folder,{hub} or to a folder that `python -m experiments.data import` "
            f"wrote{'; or set download=True' if hub else ''}."
        )

    def write(
        self,
        source: Source,
        out: Path,
        advance: Callable[[int], object] = lambda count: None,
    ) -> None:
        """Write the files into the new folder `out`, whole or not at all."""
        with new_folder(out) as folder:
            for split in source.splits or ["train"]:  # which says why there is none
                (folder / split).mkdir()
                self.gathered(source, split, folder=folder / split, advance=advance)
            (folder / ABOUT).write_text(json.dumps({"dataset": self.name, "form": source.form}))

    def gathered(
        self,
        source: Source,
        split: str,
        *,
        folder: Path | None = None,
        advance: Callable[[int], object] = lambda count: None,
    ) -> Split:
        """Return one split of a benchmark's files, in memory, or with a `folder` written there.

        An example of a training user that cannot be read stays, with the label `UNREADABLE`; one of a test split is a
        `DataError`. `advance` is told how many examples were read.
        """
        with TemporaryDirectory(dir=folder) if folder else nullcontext() as raw:
            arrays, users = self._read(source, split, Path(raw) if raw else None, advance)
            arrays["names"], rank = np.unique(np.array(users), return_inverse=True)
            owners = rank[arrays.pop("user")]
            if "ends" in arrays:
                arrays["ends"] = np.cumsum(arrays["ends"])
            arrays["order"] = np.argsort(owners, kind="stable")
            arrays["bounds"] = np.concatenate([[0], np.cumsum(np.bincount(owners))])
            if folder is not None:
                written(arrays, folder)
                return Split.mapped(folder)
        if "x" in arrays and compact(arrays["x"]) != arrays["x"].dtype:
            arrays["x"] = np.concatenate([as_bytes(part) for part in pieces(arrays["x"])])
        return Split.of(arrays)

    def _read(
        self, source: Source, split: str, folder: Path | None, advance: Callable[[int], object]
    ) -> tuple[dict[str, np.ndarray], Sequence[str]]:
        """Return (inputs, labels and users, as places among the names, of the examples of a split; these names)."""
        # Of the hub's examples, of which a fifth is the test set, those are refused with it.
        unreadable = Unreadable(source.where, is_public="test" in split or split == "heldout")
        numbers: dict[str, int] = {}
        grown: dict[str, Grown] = {}
        with ExitStack() as files:
            for raw in source.read(split):
                if not len(raw.users):
                    continue
                x, y = self._converted(raw, source.form, unreadable)
                names = user_names(raw.where, raw.users).tolist()
                user = np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int32)
                found: dict[str, np.ndarray] = {"y": y, "user": user}
                if isinstance(x, list):
                    found["text"] = np.frombuffer(b"".join(x), np.uint8)
                    found["ends"] = np.array([len(text) for text in x], np.int64)
                else:
                    found["x"] = x
                for name, array in found.items():
                    if name not in grown:
                        place = folder and folder / name
                        grown[name] = files.enter_context(closing(Grown(place)))
                    grown[name].append(array)
                advance(len(names))
            unreadable.warn()
            if not grown:
                raise DataError(f"{source.where} holds no examples; it must hold some.")
            return {name: array.finished() for name, array in grown.items()}, list(numbers)

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
            columns = examples(columns["example"], list(self.files.fields))
        return self.convert(columns)


def _imported(path: Path, name: str) -> Held:
    """Return the examples of the benchmark `name` in a folder that `Benchmark.write` has written."""
    with reading(path / ABOUT, "JSON"):
        about = json.loads((path / ABOUT).read_text())
        if about["dataset"] != name:
            raise DataError(
                f"{path} holds {about['dataset']}, not {name}; set dataset to it, or path to another folder."
            )
        return Held(path, about["form"], partial(_mapped, path))


def _mapped(path: Path, split: str) -> Split:
    """Return one split of an imported folder, mapped."""
    if not (path / split).is_dir():
        raise DataError(
            f"{path} holds no split {split}: the files that were imported have none. Import files that do."
        )
    with reading(path / split, "an imported split"):
        return Split.mapped(path / split)


def parted(
    held: Held, prefix: str = "", choose: Callable[[Split], Split] | None = None, *, clients_only: bool
) -> tuple[Split, Split | None, np.ndarray]:
    """Return (training examples, test examples, the rows of these in their order), None and no rows with `clients_only`.

    TFF and LEAF have splits of these names behind `prefix`; TFF's test users are in an order drawn by a public seed. Of the
    hub's one split a fifth of each user's examples is the test set, drawn likewise. `choose` says which are used.
    """
    choose = choose or (lambda split: split)
    if held.form == "hub":
        whole = choose(held.split("all"))
        rows = np.sort(whole.order)
        drawn = fifth_of_each(whole.users[rows], seed=SPLIT_SEED, names=whole.names)
        is_test = np.zeros(len(whole.y), dtype=bool)
        is_test[rows[drawn]] = True
        return whole.only(~is_test), None if clients_only else whole.only(is_test), rows[drawn]
    training = choose(held.split(f"{prefix}train"))
    if clients_only:
        return training, None, np.empty(0, np.int64)
    test = choose(held.split(f"{prefix}test"))
    return (
        training,
        test,
        test.shuffled(SPLIT_SEED) if held.form == "tff" else np.sort(test.order),
    )


def numbers(values: Any, kinds: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return values [n] as numbers [n, *shape] of one of numpy's `kinds`; raise `DataError` for one that is not."""
    with reading("It", f"{prod(shape)} numbers"):  # numpy's own view of lists of many lengths and types
        array = np.asarray(values)
    # numpy takes true for 1 among other numbers
    truths = isinstance(values, list) and any(
        bool in set(map(type, value if isinstance(value, list) else [value])) for value in values
    )
    if array.dtype.kind not in kinds or array.size != len(values) * prod(shape) or truths:
        what = f"{prod(shape)} pixels" if shape else "one whole number as its label"
        held = "true or false" if truths else f"{array.dtype} {array.shape[1:]}"
        raise DataError(f"It holds {held}; each must hold {what}.")
    return array.reshape(-1, *shape)


def texts(values: Sequence[Any]) -> Converted:
    """Return values that are texts, as bytes; raise `DataError` for one that is none."""
    if not all(isinstance(value, bytes) for value in values):
        raise DataError("A stored example holds what is no text; it must be bytes of UTF-8.")
    return [bytes(value) for value in values], np.zeros(len(values), np.int8)
