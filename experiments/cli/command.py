"""One way to run a command: compose its settings, call it, turn mistakes into a sentence and an exit code.

A command is `python -m experiments.NAME [overrides]`. Data goes to stdout; logs, progress and errors to stderr. Exit
codes: 0 done; 2 a user's mistake; 1 a stop that can be resumed; 130 interrupted by Ctrl-C or SIGTERM.
"""

import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from experiments import INTERRUPTED
from experiments.settings.compose import compose, help_text
from experiments.settings.mistakes import sentence
from fedmf.errors import FedmfError, RunStoppedError

USER_MISTAKE, STOPPED = 2, 1

T = TypeVar("T")


@dataclass(frozen=True)
class Form:
    """One way to give a command's settings: conf/`name`.yaml as the frozen dataclass `settings`, for `function`."""

    function: Callable[[Any], object]
    name: str
    settings: type


def run(
    function: Callable[[T], object],
    name: str,
    settings: type[T],
    doc: str | None = None,
    argv: Sequence[str] | None = None,
) -> NoReturn:
    """Run a command that leaves no output folder, and exit.

    `settings` is the frozen dataclass of conf/NAME.yaml, which `function` is given; `doc` is what --help says first.
    """
    run_form(lambda overrides: Form(function, name, settings), doc, argv)


def run_form(
    pick: Callable[[Sequence[str]], Form], doc: str | None = None, argv: Sequence[str] | None = None
) -> NoReturn:
    """Run a command whose settings can be given in several forms, as `run` does; `pick` tells by the arguments."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    end_with(lambda: guard(lambda: _call(pick(arguments), doc, arguments)))


def end_with(action: Callable[[], int]) -> NoReturn:
    """Exit with the code that `action` returns, or with 130 and without a traceback after Ctrl-C or SIGTERM."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        code = action()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:  # who reads has seen enough, as in `... --help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = STOPPED
    sys.exit(code)


def guard(action: Callable[[], object]) -> int:
    """Return the exit code of `action`: 0, or with one sentence on stderr 2 for a user's mistake, 1 for a stop."""
    try:
        action()
    except FedmfError as error:
        print(f"error: {sentence(error)}", file=sys.stderr)
        return STOPPED if isinstance(error, RunStoppedError) else USER_MISTAKE
    except OSError as error:
        if error.filename is None:
            raise
        print(f"error: {error.filename} cannot be used: {error.strerror}.", file=sys.stderr)
        return USER_MISTAKE
    return 0


def without_traceback(record: logging.LogRecord) -> bool:
    """Turn a log record of an error that speaks for itself into its sentence: a filter that lets all records pass."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, FedmfError):
        record.msg, record.args, record.exc_info = "%s", (sentence(error),), None
    return True


def _call(form: Form, doc: str | None, arguments: Sequence[str]) -> None:
    if {"-h", "--help"} & set(arguments):
        defaults = help_text(form.name, form.settings)
        print(
            f"{_as_called(doc or '')}\n\nkeys and defaults (override as key=value):\n\n{defaults}", flush=True
        )
        return
    form.function(compose(form.name, arguments, form.settings))


def _as_called(doc: str) -> str:
    """Return a module's docstring with commands as this process was called: `fedmf NAME` or `python -m ...`."""
    is_console = " " in Path(sys.argv[0]).name  # as experiments.cli.console names it
    return (doc.replace("python -m experiments.", "fedmf ") if is_console else doc).strip()
