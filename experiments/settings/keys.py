"""The library's messages with the keys of the command line.

fedmf, server and client name the argument that is wrong ("cohort_size is 0"), because their users have no keys. `keyed`
replaces it by the key that was typed ("population.cohort_size is 0").
"""

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from fedmf.errors import FedmfError, RunStoppedError

HOW_TO_RESUME = "Resume with run.resume=true."
_IN_YAML = {"True": "true", "False": "false", "None": "null"}


@contextmanager
def keyed(group: str, names: Any) -> Iterator[None]:
    """Let every `FedmfError` raised inside name keys of `group`, as `with_key` does.

    The error stays the same object. Also a decorator.
    """
    try:
        yield
    except FedmfError as error:
        error.args = (with_key(str(error), group, names),)
        raise


def with_key(text: str, group: str, names: Any) -> str:
    """Return `text` with the arguments `names`, or the fields of this dataclass, as keys of `group`.

    An argument is one at the beginning, and where a value is set.

    >>> with_key("copy is None; set accept=True.", "run", ("copy", "accept"))
    'run.copy is null; set run.accept=true.'
    """
    arguments: Collection[str] = getattr(names, "__dataclass_fields__", names)
    keyed_text = f" {group}.{text}" if text.partition(" ")[0] in arguments else f" {text}"
    for name in arguments:
        keyed_text = keyed_text.replace(f" {name}=", f" {group}.{name}=")
    return re.sub(
        r"(=| is | to )(True|False|None)\b", lambda found: found[1] + _IN_YAML[found[2]], keyed_text[1:]
    )


@contextmanager
def advising_to_resume() -> Iterator[None]:
    """Let a `RunStoppedError` raised inside tell how to resume the run. Also a decorator."""
    try:
        yield
    except RunStoppedError as error:
        if "run.resume" not in str(error):
            error.args = (f"{error} {HOW_TO_RESUME}",)
        raise
