"""The files of one run: their names, and how they are written and read. A directory that already holds a run is never overwritten."""

import json
import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from experiments.settings.log import messages
from experiments.settings.recorded import check_plain_values
from experiments.settings.values import finite
from fedmf.errors import RunDirectoryError
from server.cohort import Roster
from server.files import sync_folder, write_atomically
from server.known_nodes import KnownNodes

CONFIG, METRICS, PRIVACY, SUMMARY = "config.yaml", "metrics.jsonl", "privacy.json", "summary.json"
MODEL, MODEL_INITIAL, MECHANISM = "model.npz", "model_initial.npz", "mechanism.json"
REPORT = "report.html"
PROVENANCE = "provenance.json"
ATTENDANCE = "attendance.json"
CHECKPOINT = "checkpoint"
_LOST = "lost+found"  # of a file system of its own
_A_RUN = (CONFIG, METRICS, PRIVACY, SUMMARY, ATTENDANCE, MODEL, MODEL_INITIAL, CHECKPOINT)


def check_can_be_made(name: str, path: Path) -> None:
    """Raise `RunDirectoryError` if the setting `name` names no directory and none can be made there."""
    place = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not place.is_dir():
        raise RunDirectoryError(f"{name} is {path}, but {place} is a file; name a directory.")
    if not os.access(place, os.W_OK | os.X_OK):
        raise RunDirectoryError(
            f"{name} is {path}, but nothing may be written to {place}; name another directory."
        )


def open_no_link(path: str | Path, flags: int) -> int:
    """Return a descriptor of the file at `path`: an opener for `open`. Raises `OSError` for a link, which would add to a file elsewhere."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def set_aside(file: Path, error: Exception) -> None:
    """Rename a damaged file that no run needs to continue, and warn."""
    aside = file.with_name(f"{file.name}.damaged")
    file.replace(aside)
    messages.warning(
        f"{file} cannot be read ({error}); it is kept as {aside.name}, and another one is begun."
    )


def check_unused(path: Path) -> None:
    """Raise `RunDirectoryError` if the directory of a new run holds anything, or a file is in its place."""
    check_can_be_made("run.directory", path)
    if held := [name for name in _A_RUN if (path / name).exists()]:
        raise RunDirectoryError(
            f"run.directory {path} already holds a run ({', '.join(held)}); nothing was written. "
            "Name another directory, or resume with run.resume=true."
        )
    check_no_other_files(path)


def check_no_other_files(path: Path) -> None:
    """Raise `RunDirectoryError` if this directory holds no run but something else, such as other runs or a project."""
    held = {place.name for place in path.iterdir()} if path.is_dir() else set()
    if held.isdisjoint(_A_RUN) and (others := sorted(held - {_LOST})):
        raise RunDirectoryError(
            f"run.directory {path} holds no run but {', '.join(others[:5])}; nothing was written. Name a new or an empty directory."
        )


def make_directory(path: Path) -> Path:
    """Make the directory of a run and return its folder for checkpoints. Raises `RunDirectoryError` if it cannot be."""
    folder = path / CHECKPOINT
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunDirectoryError(f"run.directory {path} cannot be made: {error.strerror}.") from error
    for made in (path, path.parent):
        sync_folder(made)
    return folder


def write_json(file: Path, document: Any) -> None:
    """Write a JSON document, whole or not at all; infinite and undefined numbers become null."""
    write_atomically(file, f"{json.dumps(finite(document), indent=2)}\n".encode())


def append_metrics(file: Path, row: dict[str, Any]) -> None:
    """Append one released round to metrics.jsonl and return when it is on disk."""
    with open(file, "a", encoding="utf-8", opener=open_no_link) as opened:
        is_new = opened.tell() == 0
        opened.write(json.dumps(finite(row)) + "\n")
        opened.flush()
        os.fsync(opened.fileno())
    if is_new:
        sync_folder(file.parent)  # the name of a new file must be on disk as well


def keep_whole_metrics(file: Path) -> int:
    """Cut a torn last line off metrics.jsonl and return the last round that it holds, 0 for none.

    Raises `RunDirectoryError` where it is a link: a file elsewhere would be cut and added to.
    """
    if file.is_symlink():
        raise RunDirectoryError(f"{file} is a link; metrics must be a file of the run's directory.")
    whole = whole_lines(file)
    rows = rows_of(whole, file)
    if file.exists():
        os.truncate(file, len(whole))
    return int(rows[-1]["round"]) if rows else 0


def read_metrics(file: Path, names: Iterable[str] = ()) -> tuple[dict[str, Any], ...]:
    """Return the rows of metrics.jsonl, none where there is no such file; `names` are further metrics in them."""
    return rows_of(file.read_bytes(), file, names) if file.exists() else ()


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

ROUND_KINDS = {
    "round": partial(COUNT, low=1), "replies": COUNT, "uplink_bytes": AMOUNT, "epsilon": BOUND, "accuracy": (None, AMOUNT),
    "loss": NUMBER, "test_examples": (None, COUNT), "clipped_share": NUMBER, "norm_p10": NUMBER, "norm_p50": NUMBER,
    "norm_p90": NUMBER, "r2": NUMBER, "label_accuracy": NUMBER, "client_loss": NUMBER, "noise_over_sum": NUMBER, "next_clip_norm": (None, POSITIVE),
}  # fmt: skip
SUMMARY_KINDS = {
    "accuracy": (None, AMOUNT), "r2": NUMBER, "label_accuracy": NUMBER, "loss": NUMBER, "epsilon": BOUND, "delta": BOUND, "rounds": partial(COUNT, low=1), "epochs": COUNT,
    "parameters": partial(COUNT, low=1), "compression_ratio": POSITIVE, "test_examples": (None, COUNT),
    "uplink_bytes_per_client": NUMBER, "envelope_bytes_per_client": NUMBER,
    "chance": (None, AMOUNT), "learnt": (None, bool), "learning": (None, str),
    "wall_seconds": NUMBER, "keep_probability": NUMBER, "shape": {"input_shape": [COUNT], "classes": COUNT, "task": str},
}  # fmt: skip
PRIVACY_KINDS = {
    "paragraph": str,
    "warnings": (None, [str]),
    "epsilon": BOUND,
    "delta": BOUND,
    "unit_of_privacy": (None, str),
    "adjacency": (None, str),
}
MECHANISM_KINDS = {
    "per_round_error": [POSITIVE], "independent_per_round_error": [POSITIVE], "lowest_rms_error": (None, POSITIVE),
    "update_noise_std": NUMBER, "misgivings": (None, [str]),
}  # fmt: skip
PROVENANCE_KINDS = {
    "sessions": [{
        "first_round": (None, COUNT), "wall_seconds": NUMBER, "allows": (None, [str]),
        "software": (None, lambda value: type(value) is dict and not {dict, list} & {*map(type, value.values())}),
        "machine": (None, {"memory_bytes": (None, COUNT)}),
    }],
}  # fmt: skip


ATTENDANCE_KINDS = {
    "epochs": [{
        "epoch": COUNT, "keys": dict,
        "nodes": lambda value: type(value) is dict and all(map(COUNT, value.values())),
    }],
}  # fmt: skip


def read_json(file: Path, kinds: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON object of a file. Raises `RunDirectoryError` for anything else, and for a value of another kind."""
    return _checked(file.read_bytes(), kinds, file)


def read_json_if_there(file: Path, kinds: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON object of a file as `read_json` does, an empty one where there is no such file."""
    return read_json(file, kinds) if file.is_file() else {}


def whole_lines(file: Path) -> bytes:
    """Return the lines of a file without a torn one after the last line break; nothing where there is no file."""
    data = file.read_bytes() if file.exists() else b""
    return data[: data.rfind(b"\n") + 1]


def rows_of(data: bytes, file: Path, metrics: Iterable[str] = ()) -> tuple[dict[str, Any], ...]:
    """Return the rows of metrics.jsonl, one for each round, in order; `metrics` are recorded besides accuracy and loss.

    `data` is what is in the `file`. Raises `RunDirectoryError` as `read_json` does, and for rounds in another order.
    """
    kinds = {**dict.fromkeys(metrics, NUMBER), **ROUND_KINDS}
    rows = tuple(_checked(line, kinds, file) for line in data.splitlines() if line.strip())
    if sorted({row["round"] for row in rows}) != [row["round"] for row in rows]:
        raise RunDirectoryError(
            f"{file} holds {len(rows)} rows, not each round once and in order; restore the file."
        )
    return rows


def _checked(text: bytes, kinds: dict[str, Any], file: Path) -> dict[str, Any]:
    try:
        document = json.loads(text.decode())
        check_plain_values(document, 10_000_000)  # mechanism.json holds some for each round
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


def record_attendance(folder: Path, nodes: KnownNodes, roster: Roster) -> None:
    """Write into attendance.json which nodes of a deployment are in the epoch of `roster`, under the names that `nodes` has.

    A node's name, its key and the number that it declared are public; which of its clients was heard is not in the file.
    What was written of the same roster when the epoch began stays: who has been taken out of the list of nodes since then
    still took part, under the name of then. A damaged file is put aside: it is there for people alone.
    """
    number, held = roster.epoch + 1, {}
    try:
        held = {row["epoch"]: row for row in read_attendance(folder)}
    except (OSError, RunDirectoryError) as error:
        set_aside(folder / ATTENDANCE, error)
    before = held.get(number, {"keys": {}, "nodes": {}})
    if {before["keys"].get(name): count for name, count in before["nodes"].items()} == {**roster.nodes}:
        return
    keys = dict(sorted((nodes.called(key), key) for key in roster.nodes))
    named = {name: roster.nodes[key] for name, key in keys.items()}
    held[number] = {"epoch": number, "nodes": named, "keys": keys}
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / ATTENDANCE, {"epochs": [held[epoch] for epoch in sorted(held)]})


def read_attendance(folder: Path) -> list[dict[str, Any]]:
    """Return {"epoch": E, "nodes": {NAME: CLIENTS}, "keys": {NAME: KEY}} for each epoch; none where there is no file."""
    return list(read_json_if_there(folder / ATTENDANCE, ATTENDANCE_KINDS).get("epochs", []))
