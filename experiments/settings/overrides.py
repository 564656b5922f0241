"""Settings given in Python as overrides in the grammar of Hydra.

>>> list(as_overrides({"seed": 3, "model": {"name": "cnn"}}))
['seed=3', 'model.name=cnn']
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral, Real

GROUPS = ("dataset", "model", "mechanism", "optimizer", "engine", "experiment")  # of which one is chosen
_BARE = re.compile(r"[A-Za-z_][\w./:-]*", re.ASCII)  # text that needs no quotes in an override
_WORDS = ("null", "true", "false", "nan", "inf")  # what means something else without quotes
_BEFORE_A_QUOTE = re.compile(r"(\\*)('|$)")


def at_home(overrides: Sequence[str]) -> list[str]:
    """Return overrides with a value's leading ~ replaced by the home folder; Hydra's grammar has no ~ in a value.

    >>> at_home(["seed=3", "~run.reproducible"])
    ['seed=3', '~run.reproducible']
    """
    parts = [override.partition("=") for override in overrides]
    return [f"{key}{equals}{os.path.expanduser(value)}" for key, equals, value in parts]


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
