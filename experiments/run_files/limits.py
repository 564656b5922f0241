"""The limit and the parts of a run: what an extension alone may change of it.

They stand in config.yaml, which anybody can edit, and in the checkpoint, which counts.
"""

from pathlib import Path
from typing import Any

from experiments.run_files.directory import CHECKPOINT, CONFIG
from experiments.run_files.reader import is_finished, read_config
from experiments.settings.overrides import text_of
from experiments.settings.recorded import Recorded, flattened
from fedmf.errors import RunDirectoryError

LIMIT = "privacy.max_epsilon"
EXTENDED = (LIMIT, "population.parts")


def bound_config(path: Path) -> Recorded:
    """Return config.yaml of a run directory, with the limit and the parts that its checkpoint has.

    Raises `RunDirectoryError` by name where they are others. After a crash at the beginning of an extension config.yaml
    may still have those before it.
    """
    from server.checkpoint import Checkpoint  # whoever compares runs alone has no need of it

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
