"""What Hydra and OmegaConf say of a mistake, as one sentence for the user."""

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from hydra.errors import HydraException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from fedmf.errors import SettingError

_ADVICE = re.compile(r"To append to your config use \S+")  # Hydra's, which would make a typo a setting
_GRAMMAR = (
    "settings are given as key=value, lists as key=[a,b], and a value with spaces or = in quotes of its own: "
    "'key=\"a=1 b=2\"'."
)
_COORDINATES = ("full_key:", "object_type=", "reference_type=", "See https", "Set the env")


@contextmanager
def as_setting_errors() -> Iterator[None]:
    """Let what Hydra or OmegaConf refuse inside be raised as a `SettingError` of one sentence."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise SettingError(sentence(error)) from error
    except ValueError as error:
        if isinstance(error, SettingError) or not _comes_from_hydra(error):
            raise
        raise SettingError(sentence(error)) from error


def sentence(error: BaseException) -> str:
    """Return the message of `error` on one line, without OmegaConf's trailing coordinates."""
    if isinstance(error, OverrideParseException):
        return f"{error.override} is not understood; {_GRAMMAR}"
    lines = [line.strip() for line in str(error).partition("Config search path")[0].splitlines()]
    kept = [line for line in lines if line and not line.startswith(_COORDINATES)]
    said = _ADVICE.sub("", " ".join(kept)).strip() or type(error).__name__
    if isinstance(error, HydraException) and error.__cause__ is not None:
        return f"{said}{'' if said.endswith('.') else ':'} {sentence(error.__cause__)}"
    return f"{said} Lists are given as key=[a,b]." if "is not a ListConfig" in said else said


def _comes_from_hydra(error: BaseException) -> bool:
    """Say whether Hydra's own code raised `error`: for some refusals, such as model=3, it has no class of its own."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and str(frames[-1].f_globals.get("__name__")).startswith("hydra.")
