"""Overrides as texts: settings given in Python, or recorded by a run, in the grammar of Hydra, and read back.

>>> list(as_overrides({"seed": 3, "model": {"name": "cnn"}}))
['seed=3', 'model.name=cnn']
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

from experiments.settings.home import at_home
from experiments.settings.mistakes import as_setting_errors

CHOICES = ("dataset", "model", "mechanism", "optimizer", "engine")  # groups whose keys depend on the choice
GROUPS = (*CHOICES, "experiment")
_BARE = re.compile(r"[A-Za-z_][\w./:-]*", re.ASCII)  # text that needs no quotes in an override
_WORDS = ("null", "true", "false", "nan", "inf")  # what means something else without quotes
_BEFORE_A_QUOTE = re.compile(r"(\\*)('|$)")


@dataclass(frozen=True)
class Override:
    """One override as it was typed: its key without + or ++, its value, None for a deletion or a sweep."""

    text: str
    key: str
    value: Any

    @property
    def is_group(self) -> bool:
        """Whether it makes a choice and gives no value."""
        return self.key in GROUPS


def parsed(overrides: Iterable[str]) -> list[Override]:
    """Return what `overrides` say. Raises `SettingError` for one that is not understood.

    >>> [(override.key, override.value) for override in parsed(["+run.extend=2", "model=cnn"])]
    [('run.extend', 2), ('model', 'cnn')]
    """
    with as_setting_errors():
        texts = at_home(list(overrides))
        return [
            Override(
                text, one.key_or_group, None if one.is_delete() or one.is_sweep_override() else one.value()
            )
            for text, one in zip(texts, OverridesParser.create().parse_overrides(texts), strict=True)
        ]


def as_overrides(settings: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    """Yield settings given in Python as overrides of Hydra."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and not key.endswith("settings"):
            yield from as_overrides(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={text_of(value)}"


def text_of(value: object) -> str:
    """Return a value in the grammar of Hydra's overrides."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{text_of(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(text_of, value)) + "]"
    if isinstance(value, Integral | Real):  # numpy's too
        return repr(int(value) if isinstance(value, Integral) else float(value))
    text = str(value)
    if _BARE.fullmatch(text) and text.lower() not in _WORDS:
        return text
    # Between quotes a backslash stands for itself, but before a quote and at the end.
    return "'" + _BEFORE_A_QUOTE.sub(lambda found: 2 * found[1] + ("\\'" if found[2] else ""), text) + "'"
