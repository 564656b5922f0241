"""On how many of the test examples a run was scored before its last round, and how far such a score may be off."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.run_files.reader import Run


def standard_error(part: int, whole: int) -> float:
    """Return the largest standard error of an accuracy on `part` of `whole` examples as an estimate of that on all.

    0.5 sqrt((1 - n/N) / (n - n/N)), for n of N examples with one target each, drawn without replacement.
    """
    return 0.0 if part >= whole else 0.5 * math.sqrt((whole - part) / ((whole - 1) * part))


def part_scored(run: Run) -> tuple[int, int] | None:
    """Return how many examples were scored before the last round and how many there are; None where these are all."""
    part, whole = (run.summary.get(key) for key in ("evaluation_examples", "test_examples"))
    return (part, whole) if part is not None and whole is not None and part < whole else None


def is_of_part(run: Run, line: Mapping[str, Any]) -> bool:
    """Say whether a scored line of metrics.jsonl is of a part of the test examples."""
    whole = run.summary.get("test_examples")
    return whole is not None and int(line.get("test_examples") or whole) < whole


def part_words(runs: Sequence[Run]) -> str:
    """Return what must be said where scores of the rounds of `runs` are shown, to go before another sentence.

    It is "" where all are of all examples.
    """
    parts = sorted({part for run in runs if (part := part_scored(run)) is not None})
    if not parts:
        return ""
    said = ", ".join(
        f"{part:,} of {whole:,} test examples (an accuracy on them is that on all within a standard error of at most "
        f"{100 * standard_error(part, whole):.2f} points, where an example has one target)"
        for part, whole in parts
    )
    some = len(parts) > 1 or any(part_scored(run) is None for run in runs)
    unlike = "; runs differ in that, and their rounds are not scored alike" if some else ""
    return f"Before the last round scored on {said}{unlike}. "
