"""A Python process, and those that it starts, whose clock is off, without rights and without a library for it.

`environment` is what to start the program with: Python imports the `sitecustomize` that is named there before anything else.
What is shifted is what Python asks for the time of day (`time.time`, `datetime.now`); the system's own clock, and what
C code reads of it, such as the dates of certificates, are not. `was_asked` says whether anybody was told a wrong time.
"""

import datetime
import os
import time
from pathlib import Path

SECONDS = "SHIFTED_CLOCK_SECONDS"
_ASKED = "asked"  # a file beside the source: a time that is off was told


class _OfDatetime(type):
    """Takes values of the real class for its own: C code makes those."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _REAL)


_REAL = datetime.datetime


def environment(folder: Path, seconds: float) -> dict[str, str]:
    """Return the variables of a program whose clock is `seconds` ahead; `folder` is written to."""
    folder.mkdir(exist_ok=True)
    (folder / _ASKED).unlink(missing_ok=True)
    (folder / "shifted_clock_source.py").write_text(Path(__file__).read_text())
    (folder / "sitecustomize.py").write_text("import shifted_clock_source\nshifted_clock_source.shift()\n")
    search = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": search, SECONDS: f"{seconds:g}"}


def was_asked(folder: Path) -> bool:
    """Return whether a program with the last `environment` of this folder has asked for the time."""
    return (folder / _ASKED).exists()


def shift() -> None:
    """Shift the clock of this process by as many seconds as the environment says."""
    seconds = float(os.environ.get(SECONDS, 0))
    now, now_ns = time.time, time.time_ns

    def first() -> float:
        time.time = lambda: now() + seconds
        Path(__file__).with_name(_ASKED).touch()
        return time.time()

    time.time = first
    time.time_ns = lambda: now_ns() + int(seconds * 1e9)

    class Shifted(_REAL, metaclass=_OfDatetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
            return _REAL.now(tz) + datetime.timedelta(seconds=seconds)

        @classmethod
        def utcnow(cls) -> datetime.datetime:  # type: ignore[override]
            return _REAL.now(datetime.UTC).replace(tzinfo=None) + datetime.timedelta(seconds=seconds)

    datetime.datetime = Shifted  # type: ignore[misc]
