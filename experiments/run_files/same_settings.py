"""What "the same run" means: which settings may differ between the calls that carry one run to its end.

A run is resumed, and a sweep that was cut short continues, with the settings of the first call; only those of `FREE`
may differ, which change speed and output and not the run. Runs are compared as one group when they differ in
nothing but these and their seed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from experiments.run_files.directory import CHECKPOINT, CONFIG
from experiments.run_files.reader import is_finished, read_config
from experiments.settings.overrides import text_of
from experiments.settings.recorded import Difference, Recorded, flattened
from experiments.settings.schema import FREE, Settings
from experiments.settings.values import plain
from fedmf.errors import RunDirectoryError

LIMIT = "privacy.max_epsilon"
PARTS = "population.parts"
EXTENDED = (LIMIT, PARTS)


def bound_config(path: Path) -> Recorded:
    """Return config.yaml of a run directory, with the limit and the parts that its checkpoint has.

    Raises `RunDirectoryError` by name where they are others. After a crash at the beginning of an extension config.yaml
    may still have those before it.
    """
    from server.checkpoint import Checkpoint  # comparing runs alone does not need it

    document = read_config(path)
    bound = Checkpoint(path / CHECKPOINT, {}).bound(EXTENDED, is_over=is_finished(path))
    if not bound:
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


# What may differ besides within a group of compared runs: how a run was watched, and its repetition.
REPETITION = (*FREE, "seed", "run.", "metrics", "hydra.")


def fixed(settings: Settings) -> dict[str, Any]:
    """Return the settings that may not change when the run is resumed, by key."""
    return _fixed(plain(settings))


def differences(held: Recorded, wanted: Recorded, besides: Sequence[str] = ()) -> list[Difference]:
    """Return what differs, with both values, apart from what may and from the keys `besides`.

    >>> [each.key for each in differences({"seed": 1, "engine": {"workers": 1}}, {"seed": 2, "engine": {"workers": 4}})]
    ['seed']
    """
    old, new = _fixed(held), _fixed(wanted)
    return [
        Difference(key, old.get(key), new.get(key))
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key) and key not in besides
    ]


def without(document: Recorded, left_out: tuple[str, ...]) -> dict[str, Any]:
    """Return the settings by key, without those whose key is in `left_out` or begins with one of its groups."""
    groups = tuple(key for key in left_out if key.endswith("."))
    return {
        key: value for key, value in flattened(document) if key not in left_out and not key.startswith(groups)
    }


def refuse_other_settings(directory: Path, settings: Settings, besides: Sequence[str] = ()) -> None:
    """Raise `RunDirectoryError` when `directory` holds a run of other settings, the keys `besides` apart."""
    if not (directory / CONFIG).is_file():
        return
    if different := differences(bound_config(directory), plain(settings), besides):
        refuse_differences(directory, different)


def refuse_differences(directory: Path, different: Sequence[Difference]) -> NoReturn:
    """Raise `RunDirectoryError` with each setting that differs, what the run has and what was given."""
    said = "; ".join(
        f"{key.removesuffix('.name')} is {text_of(given)}, and the run has {text_of(has)}"
        for key, has, given in different
    )
    raise RunDirectoryError(
        f"{directory} holds a run with another {', '.join(key for key, _, _ in different)}: {said}. Leave out what is not "
        "the run's own (run.resume=true needs no other setting), or choose another directory."
    )


def _fixed(document: Recorded) -> dict[str, Any]:
    engine: Mapping[str, Any] = document.get("engine") or {}
    return {**without(document, FREE), "engine=deployment": engine.get("name") == "deployment"}
