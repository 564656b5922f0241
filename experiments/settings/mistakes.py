"""What Hydra and OmegaConf say of a mistake, as one sentence for the user, with the setting that may have been meant."""

import traceback
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches

from hydra.errors import HydraException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from fedmf.errors import SettingError

# Lines of a message: where Hydra was when it noticed, and advice that would make a typo a setting.
_NOISE = ("To append", "full_key:", "object_type=", "reference_type=", "See https", "Set the env")


@contextmanager
def as_setting_errors(conf: str | None = None, overrides: Sequence[str] = ()) -> Iterator[None]:
    """Raise what Hydra or OmegaConf refuse as a `SettingError` of one sentence.

    With `overrides` of the settings composed as `conf` it names the first unknown key, and the nearest that there is.
    """
    try:
        yield
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        said = _unknown_key(conf, overrides)
        if said is None and (isinstance(error, SettingError) or not _comes_from_hydra(error)):
            raise
        raise SettingError(said or sentence(error)) from error


def sentence(error: BaseException) -> str:
    """Return the message of `error`, and of what Hydra caught before it, on one line."""
    if isinstance(error, OverrideParseException):  # whose own message is that of a parser
        return f"{error.override} is not understood; settings are given as key=value, lists as key=[a,b]."
    lines = [line.strip() for line in str(error).partition("Config search path")[0].splitlines()]
    text = " ".join(line for line in lines if line and not line.startswith(_NOISE)) or type(error).__name__
    if isinstance(error, HydraException) and error.__cause__ is not None:
        return f"{text.rstrip('.')}: {sentence(error.__cause__)}"
    return text


def check_no_flags(arguments: Sequence[str], allowed: Collection[str] = ()) -> None:
    """Raise `SettingError` for an option such as --seed that is none of `allowed`."""
    for argument in arguments:
        if argument.startswith("-") and argument.partition("=")[0] not in allowed:
            raise SettingError(f"{argument} is no option; settings are given as key=value, without dashes.")


def unknown(command: str, key: str) -> str:
    """Return that there is no such setting, the nearest one, and where help is.

    >>> unknown("simulate", "epsilon")
    'epsilon is no setting of simulate; did you mean privacy.epsilon? `fedmf simulate --help` lists all of them.'
    """
    from experiments.settings.reference import (  # with all settings of the command: for a mistake alone
        called,
        reference,
    )

    known = reference(command)
    names = [*known.groups, *known.keys]
    near = [name for name in names if name.endswith(f".{key}")] or get_close_matches(key, names, cutoff=0.72)
    asked = f"did you mean {near[0]}? " if near else ""
    return f"{key} is no setting of {command}; {asked}`{called(command)} --help` lists all of them."


def _unknown_key(conf: str | None, overrides: Sequence[str]) -> str | None:
    """Return the sentence on the first of `overrides` whose key is none of the command composed as `conf`, if any."""
    if conf is None:
        return None
    from experiments.settings.reference import RUN, reference

    command = RUN if conf == "config" else conf
    known = reference(command)
    names = ("hydra", "experiment", *known.groups, *known.keys)
    for override in overrides:
        key = override.lstrip("+~").partition("=")[0]
        is_below = any(key.startswith((f"{name}.", f"{name}/")) for name in ("hydra", *known.keys))
        if key.removesuffix(".name") not in names and not is_below:
            return unknown(command, key)
    return None


def _comes_from_hydra(error: BaseException) -> bool:
    """Return whether Hydra's own code raised `error`: for some mistakes, such as model=3, it has no class of its own."""
    if isinstance(error, HydraException | OmegaConfBaseException):
        return True
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return str(frames[-1].f_globals.get("__name__")).startswith("hydra.")
