"""A run's recorded settings together with overrides that were given beside them.

What the run recorded comes first, as overrides, so that a given one that says the same changes nothing and one that
says something else is seen by comparing. Groups with choices (model, dataset, ...) are compared by their choice.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.settings.compose import compose
from experiments.settings.overrides import CHOICES, Override, as_overrides, parsed
from experiments.settings.recorded import Difference, flattened
from experiments.settings.schema import FREE, OF_THE_CALL, Settings
from experiments.settings.values import plain


@dataclass(frozen=True)
class Beside:
    """A run's `recorded` settings as overrides, those `given` to put behind them, and the choices that are not the run's."""

    recorded: tuple[str, ...]
    given: tuple[str, ...]
    differences: tuple[Difference, ...]


def beside(recorded: Settings, given: Sequence[str]) -> Beside:
    """Return the overrides for a run that goes on with its `recorded` settings and those `given`.

    A given engine is another engine; any other choice, or published run (+experiment=NAME), that says
    something else than was recorded is a difference, and then not among the overrides.
    """
    document, kept, differences = plain(recorded), [], []
    own = {group: _choice(document[group]["name"]) for group in CHOICES}
    for override in parsed(given):
        if override.key.startswith("hydra"):
            kept.append(override.text)
        elif override.key in own:
            if override.key == "engine" and override.value != own["engine"]:
                document.pop("engine")
                kept.append(override.text)
            elif override.value != own[override.key]:
                differences.append(Difference(override.key, own[override.key], override.value))
        elif override.is_group:
            differences += _effects(override, document)
        else:
            kept.append(override.text)
    groups = [f"{group}={choice}" for group, choice in own.items() if group in document]
    values = [text for text in as_overrides(document) if not _is_in(text.partition("=")[0], OF_THE_CALL)]
    return Beside((*groups, *values), tuple(kept), tuple(differences))


def describes_a_run(given: Sequence[str]) -> bool:
    """Say whether a setting of a run is among `given`, and not only what says where it lies and how it is watched.

    >>> describes_a_run(["run.resume=true", "engine.workers=2"]), describes_a_run(["run.resume=true", "seed=0"])
    (False, True)
    """
    return any(not _is_in(override.key, FREE) for override in parsed(given))


def _is_in(key: str, keys: Sequence[str]) -> bool:
    """Say whether a key is among `keys`, or in a group that is."""
    return key in keys or f"{key.partition('.')[0]}." in keys


def is_true(value: object) -> bool:
    """Say whether a value given for a setting that is true or false is true.

    >>> is_true(True), is_true("yes"), is_true("On"), is_true(1), is_true("no"), is_true(None), is_true(0)
    (True, True, True, True, False, False, False)
    """
    return str(value).lower() in ("true", "yes", "on", "y", "1")


def named_in(given: Sequence[str]) -> Collection[str]:
    """Return the texts with a colon among the values given: whoever typed an import path knows the code.

    >>> sorted(named_in(["dataset.name=mine:load", "metrics=[accuracy,mine:recall]", "seed=3"]))
    ['mine:load', 'mine:recall']
    """
    values = [override.value for override in parsed(given)]
    texts = [text for value in values for text in (value if isinstance(value, list) else [value])]
    return {str(text) for text in texts if ":" in str(text)}


def _choice(name: str) -> str:
    """Return the choice behind a recorded name; an import path is of the choice custom."""
    return "custom" if ":" in name else name


def _effects(override: Override, document: dict[str, Any]) -> Iterator[Difference]:
    """Yield what a published run sets otherwise than `document` has it."""
    has, default = dict(flattened(document)), dict(flattened(plain(compose("config", [], Settings))))
    for key, value in flattened(plain(compose("config", [override.text], Settings))):
        if value != default.get(key) and value != has.get(key):
            yield Difference(key, has.get(key), value)
