"""The files of one run. A directory that already holds a run is never written over."""

import io
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.run_files.values import finite, rows_of
from experiments.settings.log import messages
from fedmf.errors import RunDirectoryError
from server.files import open_no_link, sync_folder, write_atomically

CONFIG, METRICS, PRIVACY, SUMMARY = "config.yaml", "metrics.jsonl", "privacy.json", "summary.json"
MODEL, MODEL_INITIAL, MECHANISM = "model.npz", "model_initial.npz", "mechanism.json"
REPORT = "report.html"
PROVENANCE = "provenance.json"
ATTENDANCE = "attendance.json"
RELEASES = "releases.bin"
CHECKPOINT = "checkpoint"
_A_RUN = (CONFIG, METRICS, PRIVACY, SUMMARY, ATTENDANCE, MODEL, MODEL_INITIAL, RELEASES, CHECKPOINT)


def refuse_unmakeable(name: str, path: Path) -> None:
    """Raise `RunDirectoryError` if the setting `name` names no directory and none can be made there."""
    place = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not place.is_dir():
        raise RunDirectoryError(f"{name} is {path}, but {place} is a file; name a directory.")
    if not os.access(place, os.W_OK | os.X_OK):
        raise RunDirectoryError(
            f"{name} is {path}, but nothing may be written to {place}; name another directory."
        )


def set_aside(file: Path, error: Exception) -> None:
    """Rename a damaged file that no run needs to continue, and warn."""
    aside = file.with_name(f"{file.name}.damaged")
    file.replace(aside)
    messages.warning(
        f"{file} cannot be read ({error}); it is kept as {aside.name}, and another one is begun."
    )


@dataclass(frozen=True)
class RunDirectory:
    """Where a run writes what it did."""

    path: Path

    def refuse_if_used(self) -> None:
        """Raise `RunDirectoryError` if this directory holds something of a run, or a file is in its place."""
        refuse_unmakeable("run.directory", self.path)
        held = [name for name in _A_RUN if (self.path / name).exists()]
        if held:
            raise RunDirectoryError(
                f"run.directory {self.path} already holds a run ({', '.join(held)}); nothing was written. "
                "Name another directory, or go on with run.resume=true."
            )

    def refuse_if_checkpoint_is_lost(self) -> None:
        """Raise `RunDirectoryError` if rounds were shown here, and there is no checkpoint to continue from."""
        metrics, folder = self.path / METRICS, self.path / CHECKPOINT
        if metrics.is_file() and metrics.stat().st_size and not any(folder.glob("base-*.npz")):
            raise RunDirectoryError(
                f"{self.path} shows released rounds, but {folder} holds no checkpoint: a released round must not be "
                "run again. Restore the checkpoint folder, or name another run.directory."
            )

    def create(self) -> Path:
        """Make the directory and return its folder for checkpoints. Raises `RunDirectoryError` if it cannot be."""
        folder = self.path / CHECKPOINT
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunDirectoryError(f"run.directory {self.path} cannot be made: {error.strerror}.") from error
        for made in (self.path, self.path.parent):
            sync_folder(made)
        return folder

    def write_text(self, name: str, text: str) -> None:
        """Write a text file."""
        write_atomically(self.path / name, text.encode())

    def write_json(self, name: str, document: Any) -> None:
        """Write a JSON document; infinite and undefined numbers become null."""
        self.write_text(name, json.dumps(finite(document), indent=2) + "\n")

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Append one released round to metrics.jsonl and return when it is on disk."""
        self._refuse_linked_metrics()
        with open(self.path / METRICS, "a", encoding="utf-8", opener=open_no_link) as file:
            is_new = file.tell() == 0
            file.write(json.dumps(finite(row)) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            sync_folder(self.path)  # the name of a new file must be on disk as well

    def keep_whole_metrics(self) -> int:
        """Cut a torn last line off metrics.jsonl and return the last round that it holds, 0 for none."""
        self._refuse_linked_metrics()
        path = self.path / METRICS
        whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
        if not whole:
            path.unlink(missing_ok=True)
            return 0
        rows = rows_of(whole, path)
        os.truncate(path, len(whole) + 1)
        return int(rows[-1]["round"]) if rows else 0

    def read_metrics(self, names: Iterable[str] = ()) -> tuple[dict[str, Any], ...]:
        """Return the rows of metrics.jsonl, none where there is no such file; `names` are further metrics in them."""
        path = self.path / METRICS
        return rows_of(path.read_bytes(), path, names) if path.exists() else ()

    def _refuse_linked_metrics(self) -> None:
        """Raise `RunDirectoryError` where metrics.jsonl is a link: a file elsewhere would be cut and added to."""
        if (path := self.path / METRICS).is_symlink():
            raise RunDirectoryError(f"{path} is a link; metrics must be a file of the run's directory.")

    def write_model(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Write the arrays of a model, one for each parameter or buffer by name; float32 what trained."""
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)  # type: ignore[arg-type]
        write_atomically(self.path / name, buffer.getvalue())
