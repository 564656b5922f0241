"""What a run leaves in its directory, read back.

Secret files (checkpoint/) are never opened."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from client.metric_names import further_metrics
from experiments.run_files.directory import (
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
    rows_of,
)
from experiments.settings.recorded import Recorded, from_yaml
from fedmf.errors import RunDirectoryError


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
        """Names and entries of the recorded metrics besides accuracy and loss."""
        return further_metrics(self.config.get("metrics"))

    def score(self, metric: str) -> float:
        """Return the last model's value of `metric`, nan where it was not defined or could not be computed."""
        value = self.summary.get(metric)
        return float(value) if isinstance(value, int | float) else math.nan


def read_run(directory: Path) -> Run:
    """Return what the run in `directory` recorded; raise `RunDirectoryError` for a missing or malformed file."""
    config = read_config(directory)
    metrics, lines = further_metrics(config.get("metrics")), directory / METRICS
    return Run(
        directory,
        config,
        rows_of(_there(lines, "released a round").read_bytes(), lines, metrics),
        read_json(_there(directory / PRIVACY), PRIVACY_KINDS),
        read_summary(directory, metrics),
        *(
            read_json(file, kinds) if (file := directory / name).is_file() else {}
            for name, kinds in ((MECHANISM, MECHANISM_KINDS), (PROVENANCE, PROVENANCE_KINDS))
        ),
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
        raise RunDirectoryError(f"{file} {error}; directory must name the directory of a run.") from error


def _there(file: Path, done: str = "finished") -> Path:
    """Return `file`. Raises `RunDirectoryError` where it is none: the run has not `done` what writes it."""
    if not file.is_file():
        raise RunDirectoryError(f"{file} does not exist; the run has not {done}.")
    return file
