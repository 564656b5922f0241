"""The Python door: `from experiments import run`.

Settings are those of `python -m experiments.simulate`; progress goes to stderr, nothing is printed at the end, and
mistakes are `FedmfError`s. Nothing global is left behind: Hydra's state is as it was. Runs that several threads ask
for take turns: Hydra, Flower and torch's default generator know one state a process.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from numbers import Integral, Real
from pathlib import Path
from threading import RLock

from experiments.run_files.reader import read_config
from experiments.session.result import Result
from experiments.session.simulation import simulate
from experiments.settings.compose import compose
from experiments.settings.frozen import plain
from experiments.settings.jobs import default_directory
from experiments.settings.recorded import named_code, refuse_code, restored
from experiments.settings.schema import Settings
from fedmf.errors import SettingError

_ONE_AT_A_TIME = RLock()
_BARE = re.compile(r"[A-Za-z_][\w./:-]*")  # text that needs no quotes in an override
_WORDS = ("null", "true", "false", "nan", "inf")  # what means something else without quotes
_BEFORE_A_QUOTE = re.compile(r"(\\*)('|$)")


class Runner:
    """Runs simulations in this process; `experiments.run` is one."""

    def __call__(self, *overrides: str, **settings: object) -> Result:
        """Train and return what came of it.

        `overrides` are those of the command line ("population.epochs=2"); `settings` the same as keywords, a group as
        a mapping: `run("model=mlp", seed=3, population={"epochs": 2})`. Without run.directory the run lies in
        runs/DATE_TIME below the current directory. Raises a `FedmfError` for what cannot run as asked, before
        anything is written.

        >>> list(as_overrides({"seed": 3, "privacy": {"epsilon": None, "noise_multiplier": 0.5}}))
        ['seed=3', 'privacy.epsilon=null', 'privacy.noise_multiplier=0.5']
        """
        for override in overrides:
            if not isinstance(override, str):
                raise SettingError(f"{override!r} is no override; give texts such as 'seed=3', or keywords.")
        with _ONE_AT_A_TIME:
            composed = compose("config", [*overrides, *as_overrides(settings)], Settings)
            return _simulated(composed, Path(default_directory(composed.run.directory)))

    def resume(self, directory: str | Path, *, trust_code: bool = False, accept_copy: bool = False) -> Result:
        """Go on with the run in `directory` after its last released round, with the settings it recorded.

        A finished run is returned as it is. `trust_code` as in `load`; `accept_copy`: whether `directory` may be a copy
        or an older state of the directory that the run began in. Raises `RunDirectoryError` for a directory
        that holds no run, and what `simulate` raises.
        """
        recorded = read_config(Path(directory))
        if not trust_code:
            refuse_code(Path(directory), recorded)
        with _ONE_AT_A_TIME:
            settings = restored(recorded)
            again = replace(settings.run, directory=str(directory), resume=True, accept_copy=accept_copy)
            return _simulated(replace(settings, run=again), Path(directory))

    def load(self, directory: str | Path, *, trust_code: bool = False) -> Result:
        """Return the finished run in `directory`; raises `RunDirectoryError` where there is none.

        `trust_code`: whether a loader or model that its config.yaml names by import path may be imported.
        """
        result = Result(Path(directory).resolve(), trust_code)
        _ = result.run  # refuses an unfinished or unreadable run here, not at its first use
        return result


run = Runner()


def as_overrides(settings: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    """Yield settings given in Python as overrides of Hydra."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and not key.endswith("settings"):
            yield from as_overrides(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={_text(value)}"


def _text(value: object) -> str:
    """Return a value in the grammar of Hydra's overrides."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_text, value)) + "]"
    if isinstance(value, Integral | Real):  # numpy's too
        return repr(int(value) if isinstance(value, Integral) else float(value))
    text = str(value)
    if _BARE.fullmatch(text) and text.lower() not in _WORDS:
        return text
    # Between quotes a backslash stands for itself, but before a quote and at the end.
    return "'" + _BEFORE_A_QUOTE.sub(lambda found: 2 * found[1] + ("\\'" if found[2] else ""), text) + "'"


def _simulated(settings: Settings, directory: Path) -> Result:
    simulate(settings, directory.resolve())
    # This process named that code, and no other: config.yaml may have changed since a run began.
    return Result(directory.resolve(), given=frozenset(named_code(plain(settings)).values()))
