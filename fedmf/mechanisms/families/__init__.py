"""The families of factorizations: each file has those of one idea, with their papers."""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from fedmf.checks import check_at_least
from fedmf.errors import SettingError
from fedmf.mechanisms.streams.protocol import NoiseStream
from fedmf.mechanisms.workload import Workload

_NAME = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class Family:
    """A way to factorize workloads, under the name that commands and statements use.

    `fit(workload, **settings)` returns the noise stream of the workload's rounds: the same tables for the same arguments,
    and `SettingError` for settings out of range. `settings` are their names; `most_rounds` is the longest epoch it can be
    asked for, None without a limit; with `from_optimum` it takes the certified optimum of the workload as `solution`.
    Raises `SettingError` for a name that could not name a file.
    """

    name: str
    fit: Callable[..., NoiseStream]
    settings: tuple[str, ...] = ()
    most_rounds: int | None = None
    from_optimum: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise SettingError(
                f"the name of the family is {self.name!r}; it must be letters, digits, '_', '.' and '-' only."
            )

    def suits(self, workload: Workload) -> bool:
        """Return whether a workload of this many rounds is not too long for the family."""
        return self.most_rounds is None or workload.rounds <= self.most_rounds

    def check(self, workload: Workload, settings: Collection[str] = ()) -> None:
        """Raise `SettingError` for a setting that the family does not have, and for too many rounds."""
        unknown = sorted(set(settings) - set(self.settings))
        if unknown:
            known = ", ".join(self.settings) or "none"
            raise SettingError(f"{self.name} has no setting {', '.join(unknown)}; it has {known}.")
        if not self.suits(workload):
            raise SettingError(
                f"rounds is {workload.rounds}; {self.name} takes at most {self.most_rounds} rounds: "
                "choose another family or shorter epochs."
            )


def chosen(name: str, value: int | None, default: int, *, least: int = 1, most: int) -> int:
    """Return a setting of a family: `value`, or if it is None the default, at most `most`.

    Raises `SettingError` for a value below `least` or above `most`.
    """
    if value is None:
        return min(default, most)
    check_at_least(name, value, least)
    if value > most:
        raise SettingError(f"{name} is {value}; it must be at most {most}.")
    return value
