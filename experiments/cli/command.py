"""One way to run a command: compose its configuration, call it, turn mistakes into a sentence and exit code
2, Ctrl-C into exit code 130.

A command is `python -m experiments.NAME [hydra overrides]`. Data goes to stdout; logs, progress and errors to
stderr.
"""

import json
import logging
import math
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from experiments import INTERRUPTED
from experiments.settings.data import refuse_unknown
from fedmf.errors import FedmfError, RunDirectoryError, RunStoppedError

if TYPE_CHECKING:
    from rich.console import Console

CONF = Path(__file__).resolve().parents[2] / "conf"
USER_MISTAKE, STOPPED = 2, 1
_ADVICE = re.compile(r"To append to your config use \S+")  # Hydra's, which would make a typo a setting
_GRAMMAR = (
    "settings are given as key=value, lists as key=[a,b], and a value with spaces or = in quotes of its own: "
    "'key=\"a=1 b=2\"'."
)
SPOKEN = (FedmfError, HydraException, OmegaConfBaseException)  # errors whose message is all that a user needs


def compose_config(name: str, overrides: Sequence[str], schema: type | None = None) -> DictConfig:
    """Return conf/NAME.yaml with `overrides` applied, checked against the dataclass `schema` if one is given.

    The YAML file names the schema as `NAME_schema` in its defaults list.
    """
    if schema is not None:
        ConfigStore.instance().store(name=f"{name}_schema", node=schema)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose(name, overrides=list(overrides))
    if schema is not None:
        refuse_unknown(config, schema)
    return config


def run(
    function: Callable[[DictConfig], object],
    name: str,
    schema: type | None = None,
    doc: str | None = None,
    argv: Sequence[str] | None = None,
) -> NoReturn:
    """Run a command that leaves no output folder, and exit:
    0 when done, 2 after a user's mistake, 130 after Ctrl-C.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    end_with(lambda: guard(lambda: _call(function, name, schema, doc, arguments)))


def end_with(action: Callable[[], int]) -> NoReturn:
    """Exit with the code that `action` returns, or with 130 and without a traceback after Ctrl-C or SIGTERM."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        code = action()
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)


def guard(action: Callable[[], object]) -> int:
    """Return the exit code of `action`: 0, or with one sentence on stderr 2 for a user's mistake, 1 for a stop."""
    try:
        action()
    except SPOKEN as error:
        print(f"error: {sentence(error)}", file=sys.stderr)
        return STOPPED if isinstance(error, RunStoppedError) else USER_MISTAKE
    except OSError as error:
        if error.filename is None:
            raise
        print(f"error: {error.filename} cannot be used: {error.strerror}.", file=sys.stderr)
        return USER_MISTAKE
    except ValueError as error:  # such as model=3: Hydra has no class of its own for some of its refusals
        if not _comes_from_hydra(error):
            raise
        print(f"error: {sentence(error)}", file=sys.stderr)
        return USER_MISTAKE
    return 0


def sentence(error: BaseException) -> str:
    """Return the message of `error` on one line, without OmegaConf's trailing coordinates."""
    if isinstance(error, MissingMandatoryValue) and error.full_key:
        return f"{error.full_key} is missing; give it as {error.full_key}=VALUE."
    if isinstance(error, OverrideParseException):
        return f"{error.override} is not understood; {_GRAMMAR}"
    lines = [line.strip() for line in str(error).partition("Config search path")[0].splitlines()]
    kept = [
        line
        for line in lines
        if line
        and not line.startswith(("full_key:", "object_type=", "reference_type=", "See https", "Set the env"))
    ]
    said = _ADVICE.sub("", " ".join(kept)).strip() or type(error).__name__
    if isinstance(error, HydraException) and error.__cause__ is not None:
        return f"{said}{'' if said.endswith('.') else ':'} {sentence(error.__cause__)}"
    return f"{said} Lists are given as key=[a,b]." if "is not a ListConfig" in said else said


def without_traceback(record: logging.LogRecord) -> bool:
    """Turn a log record of an error that speaks for itself into its sentence: a filter that lets all records pass."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, SPOKEN):
        record.msg, record.args, record.exc_info = "%s", (sentence(error),), None
    return True


def refuse_unmakeable(name: str, path: Path) -> None:
    """Raise `RunDirectoryError` if the setting `name` names no directory and none can be made there."""
    place = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not place.is_dir():
        raise RunDirectoryError(f"{name} is {path}, but {place} is a file; name a directory.")
    if not os.access(place, os.W_OK | os.X_OK):
        raise RunDirectoryError(
            f"{name} is {path}, but nothing may be written to {place}; name another directory."
        )


def console() -> "Console":
    """Return a console for results on stdout: as wide as the terminal,
    and wide enough for any table where there is none.
    """
    from rich.console import Console  # JSON has no need of it

    return Console(width=None if sys.stdout.isatty() else 140, soft_wrap=True, highlight=False)


def print_json(document: Any) -> None:
    """Print one JSON document to stdout; infinite and undefined numbers become null."""
    print(json.dumps(finite(document), indent=2))


def finite(document: Any) -> Any:
    """Return `document` with every non-finite float replaced by None."""
    if isinstance(document, dict):
        return {key: finite(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [finite(value) for value in document]
    if isinstance(document, float) and not math.isfinite(document):
        return None
    return document


def _comes_from_hydra(error: BaseException) -> bool:
    """Say whether `error` was raised by Hydra's own code."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and str(frames[-1].f_globals.get("__name__")).startswith("hydra.")


def _call(
    function: Callable[[DictConfig], object],
    name: str,
    schema: type | None,
    doc: str | None,
    arguments: Sequence[str],
) -> None:
    if {"-h", "--help"} & set(arguments):
        defaults = OmegaConf.to_yaml(compose_config(name, [], schema))
        print(f"{(doc or '').strip()}\n\nkeys and defaults (override as key=value):\n\n{defaults}")
        return
    function(compose_config(name, arguments, schema))
