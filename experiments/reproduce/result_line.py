"""One line of a file of results: a trial, what came of it, and the code that played it, as a JSON object."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from experiments.reproduce.trials import Outcome

Code = tuple[str, str]
"""Version of fedmf and digest of its code."""
_NUMBER = (float, int)
_OF_KEY = {  # in the order of `Trial.key`
    "task": (str,), "mechanism": (str,), "keep": _NUMBER, "epsilon": _NUMBER, "settings": (str,), "rate": _NUMBER, "seed": (int,),
    "held_out": _NUMBER,
}  # fmt: skip
_OF_OUTCOME = dict.fromkeys(("accuracy", "loss", "seconds", "wall"), _NUMBER)
_OF_CODE = {"fedmf": (str,), "code": (str,)}
_TYPES: dict[str, tuple[type, ...]] = {**_OF_KEY, **_OF_OUTCOME, **_OF_CODE}
_LATER = ("wall", *_OF_CODE)  # what lines lack that were written before it was there
_BEGIN = b'{"task": "'  # of every line


@dataclass(frozen=True)
class ResultLine:
    """`key` is that of the trial; `code` is None in lines written before it was named."""

    key: str
    outcome: Outcome
    code: Code | None

    @property
    def text(self) -> str:
        """Return the line as it stands in the file; one that was read without wall time or code is written without."""
        document = {**json.loads(self.key), **asdict(self.outcome)}
        if self.outcome.wall is None:
            del document["wall"]
        if self.code is not None:
            document |= dict(zip(_OF_CODE, self.code, strict=True))
        return json.dumps(document) + "\n"


def parsed(line: bytes) -> ResultLine:
    """Return what a line says. Raises `ValueError` with the reason for one that `ResultLine.text` does not write."""
    document = _document(line)
    _check(document)
    said = {name: document[name] for name in _OF_KEY}
    numbers = {name: float(said[name]) for name, types in _OF_KEY.items() if types is _NUMBER}
    key = json.dumps(said | numbers)
    version, digest = document.get("fedmf"), document.get("code")
    outcome = Outcome(document["accuracy"], document["loss"], document["seconds"], document.get("wall"))
    return ResultLine(key, outcome, None if version is None or digest is None else (version, digest))


def may_be_torn(tail: bytes) -> bool:
    """Return whether the end of a file may be what a crash left of a line: its beginning, or all of it but the line break.

    >>> may_be_torn(b'{"ta'), may_be_torn(b'{"task": "digits", "mech'), may_be_torn(b'{"task": "buy milk"}'), may_be_torn(b"a note")
    (True, True, False, False)
    """
    if not tail.startswith(_BEGIN[: len(tail)]):
        return False
    try:
        document = _document(tail)
    except ValueError:
        return True
    try:
        _check(document)
    except ValueError:
        return False
    return True


def _document(line: bytes) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except RecursionError as error:
        raise ValueError("its lists lie too deep in one another") from error
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")
    return document


def _check(document: Mapping[str, Any]) -> None:
    if lacking := [name for name in _TYPES if name not in document and name not in _LATER]:
        raise ValueError(f"it lacks {', '.join(lacking)}")
    if unknown := [name for name in document if name not in _TYPES]:
        raise ValueError(f"it has {', '.join(unknown)} besides")
    for name, types in _TYPES.items():
        value: Any = document.get(name)
        if value is None and (name in _LATER or name == "loss"):
            continue
        kind = {str: "a text", int: "an integer"}.get(types[0], "a number")
        is_kind = isinstance(value, types) and not isinstance(value, bool) and _is_finite(value)
        if not is_kind:
            raise ValueError(f"its {name} is {value!r}, which is not {kind}")
        if name == "accuracy" and not 0 <= value <= 1:
            raise ValueError(f"its accuracy is {value!r}, which is not between 0 and 1")


def _is_finite(value: object) -> bool:
    """Return whether a value is no number that is infinite, NaN or too large for one."""
    try:
        return not isinstance(value, float | int) or math.isfinite(value)
    except OverflowError:
        return False
