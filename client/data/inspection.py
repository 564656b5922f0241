"""What a user should know of the data before a run: the range of the inputs, and what is probably not as it was meant.

`inspected` reads the test set, which is public: its sentences are printed and recorded. `log_zeros` reads the targets of the
clients, which are private: a simulation logs its sentence on this machine only, and nothing depends on it.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from client.data.clients import ArrayClients
from client.data.conversion import as_bytes
from client.data.dataset import CLASSIFICATION, MOST_CLASSES, MULTILABEL, OF_NUMBERS, Dataset, pieces
from client.data.limits import CheckedClients
from fedmf.checks import counted

log = logging.getLogger(__name__)

# A magnitude of inputs that the models' default learning rates do not fit; standardised inputs stay below.
LARGE = 15.0
# A largest uint8 input below which 255 is probably not the largest that the data can have.
DARK = 128
# A place of the median between the smallest and the largest input, 0 to 1, above which the ground of pictures is probably white.
LIGHT = 0.9
_SAMPLED = 100  # rows of a piece of the test inputs, at least, whose median is taken
_NAMED = 8  # of columns or classes in a sentence


def inspected(dataset: Dataset, *, is_whole: bool) -> Dataset:
    """Return a dataset with notes and warnings about its test examples; those of texts as they are.

    `is_whole`: none of the test examples was left out, so that a class without one is worth a warning.
    """
    x, y = dataset.test.x, dataset.test.y
    if x.dtype.kind != "f" or not _is_of_labels(dataset, y):
        return dataset
    # In one pass: each may decode all pictures of a big test set.
    ranges = [
        (part.min(axis=0), part.max(axis=0), np.median(part[:: 1 + len(part) // _SAMPLED]))
        for part in pieces(x)
    ]
    leasts, mosts, medians = zip(*ranges, strict=True)
    lowest, highest = np.min(leasts, axis=0), np.max(mosts, axis=0)
    low, high, columns = float(lowest.min()), float(highest.max()), dataset.columns
    named = f"{len(columns)} columns: {some(columns)}" if columns else f"of shape {list(dataset.input_shape)}"
    notes = [f"inputs are {named}; from {low:.4g} to {high:.4g} in {len(y):,} test examples"]
    warnings = []
    if max(-low, high) > LARGE:
        largest = np.maximum(-lowest, highest)
        where = [
            f"{name} {value:.4g}" for name, value in zip(columns, largest, strict=False) if value > LARGE
        ]
        warnings.append(
            f"Inputs are as large as {max(-low, high):.4g}{f' ({some(where)})' * bool(where)}, and learning rates fit inputs of "
            "about 1. Divide them by a public constant."
        )
    top = round(255 * high)
    if 0 < top < DARK and all(as_bytes(part).dtype == np.uint8 for part in pieces(x)):
        warnings.append(
            f"Inputs are uint8, which are divided by 255, but the largest test input is {top} of 255. Store them as floats, "
            f"divided by {top}."
        )
    if np.median(medians) > low + LIGHT * (high - low):
        warnings.append("Most inputs are near their largest value, as ink on white is: invert them.")
    if dataset.task in OF_NUMBERS:
        least, most = float(np.min(y)), float(np.max(y))
        each = counted(dataset.classes, "label" if dataset.task == MULTILABEL else "number")
        notes.append(f"the task is {dataset.task}: {each} a target, from {least:.4g} to {most:.4g}")
        if max(-least, most) > LARGE:
            warnings.append(
                f"Targets are as large as {max(-least, most):.4g}, and learning rates fit targets of about 1. Divide them by a public "
                "constant."
            )
    elif is_whole and (
        empty := np.flatnonzero(np.bincount(np.asarray(y), minlength=dataset.classes) == 0).tolist()
    ):
        begin = " Labels count from 0: subtract 1 where they begin at 1." * (
            empty[0] == 0 and not dataset.labels
        )
        begin += " Set dataset.task=regression if they are amounts." * (2 * len(empty) > dataset.classes > 2)
        warnings.append(
            f"{len(empty)} of {dataset.classes} classes have no test example: {some([*map(str, empty)])}.{begin}"
        )
    return replace(dataset, notes=(*notes, *dataset.notes), warnings=(*dataset.warnings, *warnings))


def some(names: Sequence[str]) -> str:
    """Return the first names of a list, and how many there are besides.

    >>> some("abcdefghij")
    'a, b, c, d, e, f, g, h and 2 more'
    """
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def log_zeros(dataset: Dataset) -> None:
    """Log how many clients have a target that is none of the classes, or no number, or of multilabel not 0 or 1, if any.

    Their turns will be zeros. Only targets that are held as an array are read.
    """
    clients = dataset.clients.held if isinstance(dataset.clients, CheckedClients) else dataset.clients
    if not isinstance(clients, ArrayClients) or not _is_of_labels(dataset, clients.y):
        return
    sizes, rows = clients.owned(range(len(clients)))
    targets = clients.y[rows]
    what = f"a target that is {'not 0 or 1' if dataset.task == MULTILABEL else 'no finite number'}"
    remedy = "correct the data"
    if dataset.task in OF_NUMBERS:
        is_right = np.isin(targets, (0, 1)) if dataset.task == MULTILABEL else np.isfinite(targets)
        is_wrong = ~is_right.reshape(len(targets), -1).all(axis=1)
    else:
        is_wrong, largest = (targets < 0) | (targets >= dataset.classes), int(targets.max())
        what = f"a label that is none of the {dataset.classes} classes"
        if dataset.labels:
            remedy = "list the names of all classes in dataset.labels"
        elif dataset.classes <= largest < MOST_CLASSES:
            remedy = f"set dataset.classes={largest + 1} if there are as many"
    if count := len(np.unique(np.repeat(np.arange(len(sizes)), sizes)[is_wrong])):
        log.warning(
            "%d of %d clients have %s, and every turn of theirs will be zeros; %s. This follows from private data: it is logged "
            "on this machine only, and stops nothing.", count, len(sizes), what, remedy,
        )  # fmt: skip


def _is_of_labels(dataset: Dataset, targets: np.ndarray) -> bool:
    """Return whether the task has labels, or numbers, and `targets` are an array of such."""
    are_classes = dataset.task == CLASSIFICATION and targets.dtype.kind in "iu" and len(targets.shape) == 1
    return are_classes or (dataset.task in OF_NUMBERS and targets.dtype.kind == "f")
