"""What Hydra and OmegaConf say of a mistake, as one sentence for the user."""

import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hydra.errors import HydraException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from experiments.settings.reference import RUN, called, reference
from experiments.settings.suggestions import refusal, refuse_flag
from fedmf.errors import SettingError

_COMMAND = {"config": RUN}  # the others are composed under their own names
_CHOICE = re.compile(r"([\w.]+) (?:(?:is|holds) .*; it (?:must be one of|may hold) |is missing; )")
# Where Hydra was when it noticed, and advice that would make a typo a setting.
_NOISE = re.compile(r"To append to your config use \S+|^Error merging override |^In '\w+': ")
_GRAMMAR = (
    "settings are given as key=value, lists as key=[a,b], and a value with spaces or = in quotes of its own: "
    "'key=\"a=1 b=2\"'."
)
_SEVERAL = re.compile(r"Ambiguous value for argument '(.*?)'(?:$|\n)")
_COORDINATES = ("full_key:", "object_type=", "reference_type=", "See https", "Set the env")


@contextmanager
def as_setting_errors(
    conf: str | None = None, overrides: Sequence[str] = (), recorded: Sequence[str] = ()
) -> Iterator[None]:
    """Let what Hydra or OmegaConf refuse inside be raised as a `SettingError` of one sentence.

    With `overrides` of the settings composed as `conf` it says what they were meant to be, where that can be known. `recorded` are those
    before them that nobody typed.
    """
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise SettingError(_said(error, conf, overrides, recorded)) from error
    except ValueError as error:
        if isinstance(error, SettingError) or not _comes_from_hydra(error):
            raise
        raise SettingError(_said(error, conf, overrides, recorded)) from error


@contextmanager
def pointing_to_help(conf: str) -> Iterator[None]:
    """Let a `SettingError` about a choice or a missing key of the settings composed as `conf` say where help on it is."""
    try:
        yield
    except SettingError as error:
        if pointer := _pointer(_COMMAND.get(conf, conf), str(error)):
            error.args = (f"{error} {pointer}",)
        raise


def refuse_added(conf: str, overrides: Sequence[str], recorded: Sequence[str] = ()) -> None:
    """Raise `SettingError` for a key with + that is none, before Hydra adds it, and for an option such as --seed."""
    command = _COMMAND.get(conf, conf)
    said = refuse_flag(command, overrides) or refusal(command, overrides, added_only=True, recorded=recorded)
    if said is not None:
        raise SettingError(said)


def _said(error: BaseException, conf: str | None, overrides: Sequence[str], recorded: Sequence[str]) -> str:
    """Return what is wrong with the overrides, or else what Hydra said."""
    if conf is None:
        return sentence(error)
    return refusal(_COMMAND.get(conf, conf), overrides, recorded=recorded) or sentence(error)


def _pointer(command: str, text: str) -> str | None:
    """Return where help is on the setting that a refused choice was for."""
    found = _CHOICE.match(text)
    if found is None or found[1] not in reference(command).keys or "--help" in text:
        return None
    return f"`{called(command)} --help {found[1]}` says more."


def sentence(error: BaseException) -> str:
    """Return the message of `error` on one line, without OmegaConf's trailing coordinates."""
    if isinstance(error, OverrideParseException):
        return f"{error.override} is not understood; {_GRAMMAR}"
    if found := _SEVERAL.match(str(error)):
        return f"{found[1]} has several values; as a list they are given as key=[a,b], and simulate tries them in turn with -m."
    lines = [line.strip() for line in str(error).partition("Config search path")[0].splitlines()]
    kept = [line for line in lines if line and not line.startswith(_COORDINATES)]
    said = _NOISE.sub("", " ".join(kept)).strip() or type(error).__name__
    if isinstance(error, HydraException) and error.__cause__ is not None:
        inner = sentence(error.__cause__)
        return inner if inner.startswith(said) else f"{said}{'' if said.endswith('.') else ':'} {inner}"
    is_new = "is not a ListConfig" in said and "lists are" not in said
    return f"{said.rstrip('.')}; lists are given as key=[a,b]." if is_new else said


def _comes_from_hydra(error: BaseException) -> bool:
    """Say whether Hydra's own code raised `error`: for some refusals, such as model=3, it has no class of its own."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and str(frames[-1].f_globals.get("__name__")).startswith("hydra.")
