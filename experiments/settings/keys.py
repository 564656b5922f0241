"""The library's messages in the words of the command line: arguments become keys.

fedmf, server and client name the argument that is wrong ("cohort_size is 0"), because their users have no YAML.
`keyed` turns that into the key that a user of a command typed ("population.cohort_size is 0").

An argument is replaced where it stands as a whole word with no dot before it. One that is an English word as well
(epochs, path) is replaced only where a message uses it as a name: before "is", "must", "without" and "=", and after
"set" and "as". Where a message lists what a loader or model takes, or says what is missing, every name is replaced:
what a user's own code takes is not known beforehand. What is to be typed (after "=" and "to") is spelt as in YAML:
null for None.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass

from fedmf.errors import FedmfError, RunStoppedError

Names = type | Iterable[str] | Mapping[str, str]
"""The arguments of one group of keys: a dataclass of settings, their names, or {argument: key in the group}."""

HOW_TO_RESUME = "Go on with run.resume=true."

_START, _END = r"(?<![\w.'\"/-])", r"(?![\w'\"/-])"
_USED_AS_A_NAME = r"(?:(?<=\bset )|(?<=\bas )){0}|{0}(?=(?: is| must| without)\b|=)"
_TAKEN = re.compile(r"(?<=; it takes )\w+(?:, \w+)*(?=\.(?!\w))")  # not where the names are keys already
_MISSING = re.compile(rf"{_START}[a-z]\w*(?= is missing;)")
_YAML = {"None": "null", "True": "true", "False": "false"}
_TO_TYPE = re.compile(rf"(?:(?<==)|(?<=\bto ))(?:{'|'.join(_YAML)})\b")


@contextmanager
def keyed(group: str, names: Names) -> Iterator[None]:
    """Let every `FedmfError` raised inside name the keys of `group` in place of arguments.

    The error stays the same object, of the same type and with its cause. Also a decorator.
    """
    try:
        yield
    except FedmfError as error:
        error.args = (with_keys(str(error), group, names),)
        raise


def with_keys(text: str, group: str, names: Names) -> str:
    """Return `text` with the arguments `names` replaced by their keys in `group`.

    >>> with_keys("epochs is 0, and cohort_size=None", "population", ("epochs", "cohort_size"))
    'population.epochs is 0, and population.cohort_size=null'
    """
    keys = _keys(group, names)
    words = sorted(map(re.escape, keys), key=len, reverse=True)
    distinct = "|".join(word for word in words if "_" in word)
    ambiguous = "|".join(word for word in words if "_" not in word)
    text = _TO_TYPE.sub(lambda found: _YAML[found[0]], text)
    text = _TAKEN.sub(lambda found: re.sub(r"\w+", lambda name: f"{group}.{name[0]}", found[0]), text)
    text = _MISSING.sub(lambda found: keys.get(found[0], f"{group}.{found[0]}"), text)
    if distinct:
        text = re.sub(f"{_START}(?:{distinct}){_END}", lambda found: keys[found[0]], text)
    if ambiguous:
        used = _USED_AS_A_NAME.format(f"{_START}(?:{ambiguous}){_END}")
        text = re.sub(used, lambda found: keys[found[0]], text)
    return text


@contextmanager
def advising_to_resume() -> Iterator[None]:
    """Let a `RunStoppedError` raised inside say with which key the run goes on. Also a decorator."""
    try:
        yield
    except RunStoppedError as error:
        if "run.resume" not in str(error):
            error.args = (f"{error} {HOW_TO_RESUME}",)
        raise


def _keys(group: str, names: Names) -> dict[str, str]:
    """Return {argument: full key}."""
    if is_dataclass(names):
        names = [field.name for field in fields(names)]
    if isinstance(names, Mapping):
        return {argument: f"{group}.{key}" for argument, key in names.items()}
    assert not isinstance(names, type)  # a group of settings is a dataclass
    return {name: f"{group}.{name}" for name in names}
