"""One name for one thing: keys of `plan` and `mechanisms` that once had another name than in a run.

The old names stay accepted, with one line that says the new ones. A class of settings has them as `old_names`, and as
`marked_by` the override that only tells its form from another one of the same command.
"""

import logging
import re
from collections.abc import Sequence

from fedmf.errors import SettingError

_log = logging.getLogger(__name__)
_OVERRIDE = re.compile(r"(?P<plus>\+{0,2})(?P<key>[\w.]+)=")


def renamed(overrides: Sequence[str], settings: type) -> list[str]:
    """Return overrides of `settings` with new names for old, and say so in one line if there are old ones.

    Raises `SettingError` where a setting is given by both of its names.
    """
    names, marker = getattr(settings, "old_names", {}), getattr(settings, "marked_by", None)
    overrides = [override for override in overrides if override != marker]
    found = [_OVERRIDE.match(override) for override in overrides]
    given = {match["key"] for match in found if match}
    old = [key for key in names if key in given]
    if not old:
        return overrides
    for key in old:
        if names[key] in given:
            raise SettingError(
                f"{key} is the old name of {names[key]}, and both are given; give one of them."
            )
    new = [
        f"{match['plus']}{names[match['key']]}={override[match.end() :]}"
        if match and match["key"] in names
        else override
        for override, match in zip(overrides, found, strict=True)
    ]
    typed = " ".join(filter(None, (marker, *new)))
    _log.warning("note: short names are accepted; with the names of `simulate` this is %s", typed)
    return new
