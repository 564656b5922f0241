"""One way to run a command: compose its settings, call it, turn mistakes into a sentence and an exit code.

A command is `python -m experiments.NAME [overrides]`. Data goes to stdout; logs, progress and errors to stderr. Exit
codes: 0 done; 2 a user's mistake; 1 a stop that can be resumed; 130 interrupted by Ctrl-C or SIGTERM, or by
SIGHUP unless that is ignored, as under nohup; ended by SIGPIPE where the reader of the output has gone.
"""

import logging
import signal
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from experiments import INTERRUPTED, ending_signals
from experiments.cli.console import STOPPED, USER_MISTAKE, ending_quietly
from experiments.settings.compose import compose, sentence
from experiments.settings.log import messages, stderr_handler
from fedmf.errors import FedmfError, RunStoppedError

T = TypeVar("T")


def run(
    function: Callable[[T], object],
    name: str,
    settings: type[T],
    doc: str | None = None,
    argv: Sequence[str] | None = None,
    composing: Callable[[Sequence[str]], T] | None = None,
) -> NoReturn:
    """Run a command that leaves no output folder, and exit.

    `settings` is the frozen dataclass that `function` is given, composed as `name`; `doc` is what --help prints first.
    `composing` makes the settings of the arguments in another way.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)

    def action() -> None:
        if not show_help(name, doc, arguments):
            function(composing(arguments) if composing else compose(name, arguments, settings))

    logging.basicConfig(handlers=[stderr_handler("%(message)s")], level=logging.INFO)
    end_with(action)


def end_with(action: Callable[[], object]) -> NoReturn:
    """Exit with the code of `action`, see `guard`, or with 130 and without a traceback after Ctrl-C, SIGTERM or SIGHUP."""
    try:
        for number in ending_signals():
            signal.signal(number, signal.default_int_handler)
        ending_quietly(lambda: guard(action))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def guard(action: Callable[[], object]) -> int:
    """Return the exit code of `action`: 0, or with one sentence on stderr 2 for a user's mistake, 1 for a stop."""
    try:
        action()
    except FedmfError as error:
        messages.error(sentence(error))
        return STOPPED if isinstance(error, RunStoppedError) else USER_MISTAKE
    except OSError as error:
        if error.filename is None:
            raise
        messages.error(f"{error.filename} cannot be used: {error.strerror}.")
        return USER_MISTAKE
    return 0


def without_traceback(record: logging.LogRecord) -> bool:
    """Turn a log record of a `FedmfError` into its sentence: a filter that lets all records pass."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, FedmfError):
        record.msg, record.args, record.exc_info = "%s", (sentence(error),), None
    return True


def show_help(command: str, doc: str | None, arguments: Sequence[str]) -> bool:
    """Print the help that `arguments` ask for, if they do, and return whether they did."""
    if not {"-h", "--help"} & set(arguments):
        return False
    from experiments.cli.help import print_help  # a command that is not asked for help has no need of it

    print_help(command, doc or "", arguments)
    return True
