"""~ in what is typed: KEY=~/FOLDER names a folder in the home folder, which no shell replaces behind a dotted key."""

import re
from collections.abc import Sequence
from pathlib import Path

_AT_HOME = re.compile(r"^(\+{0,2}[\w.@/]+=)~(?=/|$)")


def at_home(overrides: Sequence[str]) -> list[str]:
    """Return overrides with a value's leading ~ replaced by the home folder; Hydra's grammar has no ~ in a value.

    >>> at_home(["seed=3", "~run.reproducible"])
    ['seed=3', '~run.reproducible']
    """
    return [_AT_HOME.sub(lambda found: f"{found[1]}{Path.home()}", override) for override in overrides]
