"""What a run leaves in its directory, read back, and whether settings are those of that run.

A run is resumed, and a sweep that was cut short continues, with the settings of the first call; only those of `FREE`
may differ, which change speed and output and not the run. Runs are compared as one group when they differ in
nothing but these and their seed.

Of the checkpoint only the limits are read that a run continues within: its secret files are never opened.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from client.metrics import further_metrics, headline
from experiments.run_files.directory import (
    CHECKPOINT,
    CONFIG,
    MECHANISM,
    MECHANISM_KINDS,
    METRICS,
    NUMBER,
    PRIVACY,
    PRIVACY_KINDS,
    PROVENANCE,
    PROVENANCE_KINDS,
    SUMMARY,
    SUMMARY_KINDS,
    read_json,
    read_json_if_there,
    rows_of,
)
from experiments.settings.recorded import Recorded, flattened, from_yaml
from experiments.settings.schema import FREE, Settings
from experiments.settings.values import plain, text_of
from fedmf.errors import RunDirectoryError

LIMIT, PARTS = "privacy.max_epsilon", "population.parts"
# Settings that an extension of a run changes.
EXTENDED = (LIMIT, PARTS)
# What may differ within a group of compared runs: how a run was watched, and its repetition.
REPETITION = (*FREE, "seed", "run.", "metrics", "hydra.")


@dataclass(frozen=True)
class Run:
    """A finished run: `rounds` are the lines of metrics.jsonl; `mechanism` and `provenance` are empty where none was written."""

    directory: Path
    config: Recorded
    rounds: tuple[dict[str, Any], ...]
    privacy: dict[str, Any]
    summary: dict[str, Any]
    mechanism: dict[str, Any]
    provenance: dict[str, Any] = field(default_factory=dict)

    def column(self, key: str) -> tuple[list[int], list[float]]:
        """Return (rounds, values) of the rounds for which `key` was recorded as a number."""
        kept = [(line["round"], line[key]) for line in self.rounds if line.get(key) is not None]
        return [number for number, _ in kept], [value for _, value in kept]

    @property
    def further_metrics(self) -> dict[str, str]:
        """Names and entries of the recorded metrics besides the headline and the loss."""
        return further_metrics(self.config.get("metrics"))

    @property
    def headline(self) -> str:
        """What the run is judged by: accuracy, r2 or label_accuracy."""
        return headline(self.summary)

    @property
    def shape(self) -> dict[str, Any]:
        """What the model was built for, see `shape_of`."""
        return {**self.summary["shape"], "input_shape": tuple(self.summary["shape"]["input_shape"])}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings from before the first round, as the run began, and those of its statement; each once."""
        before, stated = self.mechanism.get("misgivings") or (), self.privacy.get("warnings") or ()
        return (
            *(sentence for sentence in before if sentence not in self.privacy["paragraph"]),
            *[sentence.removeprefix("Warning: ") for sentence in stated],
        )

    def score(self, metric: str) -> float:
        """Return the last model's value of `metric`, nan where it was not defined or could not be computed."""
        value = self.summary.get(metric)
        return float(value) if isinstance(value, int | float) else math.nan


def read_run(directory: Path, summary: dict[str, Any] | None = None) -> Run:
    """Return what the run in `directory` recorded; raise `RunDirectoryError` for a missing or malformed file.

    `summary` stands for the summary of a run that was stopped and has none.
    """
    config = read_config(directory)
    metrics, lines = further_metrics(config.get("metrics")), directory / METRICS
    return Run(
        directory,
        config,
        rows_of(_there(lines, "released a round").read_bytes(), lines, metrics),
        read_json(_there(directory / PRIVACY), PRIVACY_KINDS),
        summary or read_summary(directory, metrics),
        read_json_if_there(directory / MECHANISM, MECHANISM_KINDS),
        read_json_if_there(directory / PROVENANCE, PROVENANCE_KINDS),
    )


def read_summary(directory: Path, metrics: Iterable[str] = ()) -> dict[str, Any]:
    """Return summary.json of a finished run, which recorded `metrics`; raise `RunDirectoryError` for a missing or malformed one."""
    return read_json(_there(directory / SUMMARY), {**dict.fromkeys(metrics, NUMBER), **SUMMARY_KINDS})


def is_finished(directory: Path) -> bool:
    """Return whether a run in `directory` came to its end: it then wrote its summary."""
    return (directory / SUMMARY).is_file()


def read_config(directory: Path) -> Recorded:
    """Return the run's config.yaml as plain values; raise `RunDirectoryError` when it is not one."""
    file = directory / CONFIG
    if not file.is_file():
        raise RunDirectoryError(f"{directory} holds no {CONFIG}; directory must name the directory of a run.")
    try:
        return from_yaml(file.read_text())
    except ValueError as error:
        raise RunDirectoryError(
            f"{file}: {str(error).rstrip('.')}; directory must name the directory of a run."
        ) from error


def _there(file: Path, done: str = "finished") -> Path:
    """Return `file`. Raises `RunDirectoryError` where it is none: the run has not `done` what writes it."""
    if not file.is_file():
        raise RunDirectoryError(
            f"{file} does not exist; the run has not {done}. Resume one that was stopped (run.resume=true)."
        )
    return file


def bound_config(path: Path) -> Recorded:
    """Return config.yaml of a run directory, with the limit and the parts that its checkpoint has.

    Raises `RunDirectoryError` by name where they are others. After a crash at the beginning of an extension config.yaml
    may still have those before it.
    """
    from server.checkpoint import Checkpoint  # comparing runs does not need it

    document = read_config(path)
    if not (bound := Checkpoint(path / CHECKPOINT, {}).bound(EXTENDED, is_over=is_finished(path))):
        return document
    leaves = dict(flattened(document))
    for key in EXTENDED:
        if not any(held[key] == leaves.get(key) for held in bound):
            raise RunDirectoryError(
                f"{key} is {text_of(leaves.get(key))} in {path / CONFIG}, but {text_of(bound[-1][key])} in the checkpoint of "
                "the run; restore the file that was changed."
            )
    return with_limits(document, bound[-1])


def with_limits(document: Recorded, limits: dict[str, Any]) -> Recorded:
    """Return recorded settings with others of `EXTENDED`."""
    groups = dict(document)
    for dotted, value in limits.items():
        group, name = dotted.split(".")
        groups[group] = {**(groups.get(group) or {}), name: value}
    return groups


def fixed(settings: Settings | Recorded) -> dict[str, Any]:
    """Return the settings that may not change when the run is resumed, by key."""
    document = plain(settings)
    engine = (document.get("engine") or {}).get("name")
    return {**without(document, FREE), "engine=deployment": engine == "deployment"}


def differences(held: Recorded, wanted: Recorded, besides: Sequence[str] = ()) -> list[tuple[str, Any, Any]]:
    """Return the settings that differ, apart from those that may and the keys `besides`: key, value held, value wanted.

    >>> differences({"seed": 1, "engine": {"workers": 1}}, {"seed": 2, "engine": {"workers": 4}})
    [('seed', 1, 2)]
    """
    old, new = fixed(held), fixed(wanted)
    return [
        (key, old.get(key), new.get(key))
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key) and key not in besides
    ]


def without(document: Recorded, left_out: tuple[str, ...]) -> dict[str, Any]:
    """Return the settings by key, without those whose key is in `left_out` or begins with one of its groups."""
    groups = tuple(key for key in left_out if key.endswith("."))
    return {
        key: value
        for key, value in flattened(document)
        if key not in left_out and not f"{key}.".startswith(groups)
    }


def check_same_settings(directory: Path, settings: Settings, besides: Sequence[str] = ()) -> None:
    """Raise `RunDirectoryError` when the run in `directory` has other settings, the keys `besides` apart; with both values."""
    if different := differences(bound_config(directory), plain(settings), besides):
        said = "; ".join(
            f"{key.removesuffix('.name')} is {text_of(given)}, and the run has {text_of(has)}"
            for key, has, given in different
        )
        raise RunDirectoryError(
            f"{directory} holds a run with another {', '.join(key for key, _, _ in different)}: {said}. Leave out what is not "
            "the run's own (run.resume=true needs no other setting), or choose another directory."
        )
