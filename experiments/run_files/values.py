"""The JSON that a run writes, read back: each value is of the kind that was written, so that others can compute with it."""

import json
import math
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from experiments.settings.recorded import refuse_odd_values
from fedmf.errors import RunDirectoryError


def finite(document: Any) -> Any:
    """Return `document` with every non-finite float replaced by None.

    >>> finite({"epsilon": float("inf"), "rounds": [1, float("nan")]})
    {'epsilon': None, 'rounds': [1, None]}
    """
    if isinstance(document, dict):
        return {key: finite(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [finite(value) for value in document]
    if isinstance(document, float) and not math.isfinite(document):
        return None
    return document


def _is_number(
    value: object, low: float = -1e300, high: float = 1e300, kinds: tuple[type, ...] = (int, float)
) -> bool:
    return type(value) in kinds and low <= value <= high  # type: ignore[operator]


# A kind is a type, None, a function that tells whether a value is of it, [the kind of each item], {key: the kind of its value}, or a tuple
# of kinds of which one must fit. A key that is missing is None, and one that is not here may be anything.
NUMBER = (None, _is_number)
BOUND = (None, partial(_is_number, low=0.0))  # an epsilon or a delta, of which no default is made
COUNT = partial(_is_number, low=0, high=1e15, kinds=(int,))
POSITIVE = partial(_is_number, low=1e-300)
AMOUNT = partial(_is_number, low=0.0, high=1e30)

ROUND = {
    "round": partial(COUNT, low=1), "replies": COUNT, "uplink_bytes": AMOUNT, "epsilon": BOUND, "accuracy": (None, AMOUNT),
    "loss": NUMBER, "test_examples": (None, COUNT),
}  # fmt: skip
SUMMARY = {
    "accuracy": (None, AMOUNT), "loss": NUMBER, "epsilon": BOUND, "delta": BOUND, "rounds": partial(COUNT, low=1), "epochs": COUNT,
    "parameters": partial(COUNT, low=1), "compression_ratio": POSITIVE, "test_examples": (None, COUNT),
    "uplink_bytes_per_client": NUMBER, "envelope_bytes_per_client": NUMBER,
    "wall_seconds": NUMBER, "keep_probability": NUMBER, "shape": {"input_shape": [COUNT], "classes": COUNT, "task": str},
}  # fmt: skip
PRIVACY = {
    "paragraph": str,
    "epsilon": BOUND,
    "delta": BOUND,
    "unit_of_privacy": (None, str),
    "adjacency": (None, str),
}
MECHANISM = {
    "per_round_error": [POSITIVE], "independent_per_round_error": [POSITIVE], "lowest_rms_error": (None, POSITIVE),
    "update_noise_std": NUMBER, "misgivings": (None, [str]),
}  # fmt: skip
PROVENANCE = {
    "sessions": [{
        "first_round": (None, COUNT), "wall_seconds": NUMBER, "allows": (None, [str]),
        "software": (None, lambda value: type(value) is dict and not {dict, list} & {*map(type, value.values())}),
        "machine": (None, {"memory_bytes": (None, COUNT)}),
    }],
}  # fmt: skip


def read_json(file: Path, kinds: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON object of a file. Raises `RunDirectoryError` for anything else, and for a value of another kind."""
    return _checked(file.read_bytes(), kinds, file)


def rows_of(data: bytes, file: Path, metrics: Iterable[str] = ()) -> tuple[dict[str, Any], ...]:
    """Return the rows of metrics.jsonl, one for each round, in order; `metrics` are recorded besides accuracy and loss.

    `data` is what is in the `file`. Raises `RunDirectoryError` as `read_json` does, and for rounds in another order.
    """
    kinds = {**dict.fromkeys(metrics, NUMBER), **ROUND}
    rows = tuple(_checked(line, kinds, file) for line in data.splitlines() if line.strip())
    if sorted({row["round"] for row in rows}) != [row["round"] for row in rows]:
        raise RunDirectoryError(
            f"{file} holds {len(rows)} rows, not each round once and in order; restore the file."
        )
    return rows


def _checked(text: bytes, kinds: dict[str, Any], file: Path) -> dict[str, Any]:
    try:
        document = json.loads(text.decode())
        refuse_odd_values(document, 10_000_000)  # mechanism.json holds some for each round
        json.dumps(document, ensure_ascii=False).encode()  # half a character is written to no page
    except (ValueError, RecursionError) as error:
        raise RunDirectoryError(f"{file} is not JSON as a run writes it ({error}).") from error
    if not isinstance(document, dict):
        raise RunDirectoryError(f"{file} holds a {type(document).__name__}; it must hold JSON objects.")
    for key, kind in kinds.items():
        if not _fits(value := document.get(key), kind):
            raise RunDirectoryError(
                f"{file} holds {f'{value!r:.60}' if key in document else 'nothing'} as {key}, which no run writes; restore "
                "the file."
            )
    return document


def _fits(value: Any, kind: Any) -> bool:
    """Return whether a value is of a kind."""
    return bool(
        any(_fits(value, each) for each in kind)
        if isinstance(kind, tuple)
        else isinstance(value, list) and all(_fits(item, each) for item in value for each in kind)
        if isinstance(kind, list)
        else isinstance(value, dict) and all(_fits(value.get(key), each) for key, each in kind.items())
        if isinstance(kind, dict)
        else isinstance(value, kind)
        if isinstance(kind, type)
        else value is kind
        if kind is None
        else kind(value)
    )
