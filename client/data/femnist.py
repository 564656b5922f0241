"""Federated EMNIST: handwritten digits and letters of 3,400 writers, 62 classes; TFF, LEAF or hub files."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from client.data.benchmark import FLOATS, INTEGERS, Benchmark, Converted, Split, numbers
from client.data.dataset import CLASSIFICATION, UNREADABLE, Dataset, Public, as_float32
from client.data.rows import pixels_of
from client.data.sources import Files
from fedmf.errors import DataError

LICENCE = "NIST SD 19: public domain; LEAF and hub copies BSD-2-Clause"
SOURCE = "LEAF (Caldas et al. 2018); TFF emnist; hub flwrlabs/femnist"
TEST_USERS = "all train too; counted when loaded, and said in the privacy statement"
CLASSES = 62
DIGITS = 10
SHAPE = (28, 28)
BY_LABELS = (
    "only_digits leaves out the examples with another label: how many examples each training user has, and how many "
    "users train, follows from their labels, an uncovered release. TFF's files have splits of the digits."
)
FILES = Files(
    "emnist_all.sqlite",
    {
        "train": ("all_train", "fed_emnist_train.h5"),
        "test": ("all_test", "fed_emnist_test.h5"),
        "digits_train": ("digits_only_train", "fed_emnist_digitsonly_train.h5"),
        "digits_test": ("digits_only_test", "fed_emnist_digitsonly_test.h5"),
    },
    ("pixels", "label"),
    "flwrlabs/femnist",
    ("writer_id", "image", "character"),
)


def load(
    path: str | None = None,
    *,
    only_digits: bool = False,
    as_published: bool = False,
    public: Public | None = None,
) -> Dataset:
    """Return Federated EMNIST; inputs float32 [n, 28, 28] with ink = 1 and paper = 0, 62 classes.

    `only_digits` are the 10 classes 0 to 9: TFF's own splits of them, of LEAF's and the hub's files the examples with
    such a label, or with one of no class, whose client fails when it is read. TFF's and LEAF's pixels have white = 1, so
    they are subtracted from 1; the hub's pictures are black on white too. With `as_published` all are left so, paper = 1,
    as TFF and LEAF train on them.

    TFF and LEAF bring a test split of the same writers; of the hub's files, which have none, a fifth of each writer,
    chosen by a public seed, is the test set. With `public` no test example is read, nor TFF's and LEAF's test files.
    Raises `DataError` with the file to put where, when there is none.
    """
    held = BENCHMARK.held(path)
    by_label = only_digits and held.form != "tff"
    prefix = "digits_" if only_digits and not by_label else ""
    train, test, rows = held.parted(public, prefix, digits if by_label else lambda split: split)
    convert = as_float32 if as_published else turned if held.form == "hub" else ink
    return BENCHMARK.dataset(
        train,
        test,
        rows,
        convert,
        input_shape=SHAPE,
        classes=DIGITS if only_digits else CLASSES,
        task=CLASSIFICATION,
        uncovered=(BY_LABELS,) * by_label,
    )


def convert(columns: Mapping[str, Any]) -> Converted:
    """Return pictures [n, 28, 28], as they are stored, and labels [n]: of TFF pixels and label, of LEAF x and y.

    Those are float32 with white = 1, which `as_bytes` makes smaller; of the hub's image and character uint8 with white = 255.
    """
    if "image" in columns:
        pictures = np.stack([_decoded(image) for image in columns["image"]])
        return pictures, numbers(columns["character"], INTEGERS).astype(np.int64)
    x, y = ("pixels", "label") if "pixels" in columns else ("x", "y")
    pixels = numbers(columns[x], FLOATS + INTEGERS, SHAPE)
    if not ((pixels >= 0) & (pixels <= 1)).all():
        raise DataError("A stored example holds pixels that are not 0 (black) to 1 (white).")
    return pixels.astype(np.float32), numbers(columns[y], INTEGERS).astype(np.int64)


def _decoded(image: Any) -> np.ndarray:
    """Return one image of the hub, {"bytes": PNG}, as uint8 [28, 28]."""
    mode, array = pixels_of(image.get("bytes") if isinstance(image, Mapping) else None, "A picture")
    if mode != "L" or array.shape != SHAPE:
        raise DataError(
            f"A picture is {mode} {array.shape[1]} x {array.shape[0]}; it must be 8-bit grey (L), 28 x 28."
        )
    return array


def blank(count: int, form: str) -> Converted:
    """Return examples that cannot be read."""
    return np.zeros((count, *SHAPE), np.uint8 if form == "hub" else np.float32), np.full(
        count, UNREADABLE, np.int64
    )


def ink(x: np.ndarray) -> np.ndarray:
    """Return pixels with white = 1, or 255 of uint8, as float32 with ink = 1."""
    return 1 - as_float32(x)


def turned(x: np.ndarray) -> np.ndarray:
    """Return uint8 pixels with white = 255 as float32 with ink = 1."""
    return as_float32(255 - x)


def digits(split: Split) -> Split:
    """Return the examples of digits, and those of no class at all: these are an error of their client, not a letter."""
    chosen = split.only((split.y < DIGITS) | (split.y >= CLASSES))
    if not len(chosen.order):
        raise DataError("only_digits is True, but the files hold no label below 10; they must hold digits.")
    return chosen


BENCHMARK = Benchmark("femnist", FILES, convert, blank, "writer", LICENCE, SOURCE)
