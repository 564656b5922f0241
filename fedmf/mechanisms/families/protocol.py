"""What a family of factorizations is: how it is fitted to a workload, and the stream of what was fitted."""

import re
from dataclasses import dataclass
from typing import Any, Protocol

from fedmf.errors import SettingError
from fedmf.mechanisms.arrays import Float32
from fedmf.mechanisms.fitted import Fitted
from fedmf.mechanisms.streams.protocol import NoiseStream
from fedmf.mechanisms.workload import Workload

_NAME = re.compile(r"[A-Za-z0-9_.-]+")


class Fit(Protocol):
    """A function that fits a family to a workload.

    It promises sensitivity and errors of exactly the float32 tables that it returns, the same tables for the
    same arguments, and `SettingError` for settings out of range.
    """

    def __call__(self, workload: Workload, /, *args: Any, **settings: Any) -> Fitted:
        """Return the tables for `workload` with their cost; `settings` are those of the family, by name."""


class Deploy(Protocol):
    """A function that makes the stream, such as a stream's class: it knows nothing but rounds and tables."""

    def __call__(self, rounds: int, tables: Float32, /) -> NoiseStream:
        """Return the noise stream of `rounds` steps whose matrix the fitted `tables` describe."""


@dataclass(frozen=True)
class Family:
    """A way to factorize workloads, under the name that commands and statements use.

    `settings` are the names of what `fit` takes beside the workload; `most_rounds` is the longest epoch it
    can be asked for, None without a limit; `from_optimum` says that `fit` begins with the certified optimum of the
    workload, which it then takes as `solution`. Raises `SettingError` for a name that could not name a file.
    """

    name: str
    fit: Fit
    stream: Deploy
    settings: tuple[str, ...] = ()
    most_rounds: int | None = None
    from_optimum: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise SettingError(
                f"the name of the family is {self.name!r}; it must be letters, digits, '_', '.' and '-' only."
            )

    def check_settings(self, names: set[str]) -> None:
        """Raise `SettingError` for a setting that the family does not have."""
        unknown = sorted(names - set(self.settings))
        if unknown:
            known = ", ".join(self.settings) or "none"
            raise SettingError(f"{self.name} has no setting {', '.join(unknown)}; it has {known}.")

    def suits(self, workload: Workload) -> bool:
        """Return whether a workload of this many rounds is not too long for the family."""
        return self.most_rounds is None or workload.rounds <= self.most_rounds

    def check_rounds(self, workload: Workload) -> None:
        """Raise `SettingError` where the workload has too many rounds for the family."""
        if not self.suits(workload):
            raise SettingError(
                f"rounds is {workload.rounds}; {self.name} takes at most {self.most_rounds} rounds: "
                "choose another family or shorter epochs."
            )
