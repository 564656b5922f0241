"""What a process writes on stderr: messages and logs, as text or with FEDMF_LOG=json as one JSON object a line.

    {"time": "2026-01-31T12:00:00.123Z", "level": "WARNING", "logger": "server.membership", "message": "...", "run": "1"}

`messages` is the logger for the user of a command; as text it is the message alone, a warning or an error after that
word. Times are in UTC as RFC 3339 has them; an error's `traceback` is a text in the object. `run.log=json` sets FEDMF_LOG to the
end of the process. Processes that this one starts find it, and the run in FEDMF_RUN, in their environment when they import
`experiments`.
"""

import json
import logging
import os
import sys
import threading
from datetime import UTC, datetime
from typing import Any

LOG, RUN = "FEDMF_LOG", "FEDMF_RUN"  # of the environment
_FLOWERS = "flwr"  # logger with its own handlers, some of them made later than this module

messages = logging.getLogger("fedmf-messages")


def is_on() -> bool:
    return os.environ.get(LOG) == "json"


class Lines(logging.Formatter):
    """Writes a record as JSON where this process does, else as text: a message to the user as itself."""

    def format(self, record: logging.LogRecord) -> str:
        if not is_on() and record.name == messages.name:
            level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
            return f"{level}{record.getMessage()}"
        if not is_on():
            return super().format(record)
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if run := os.environ.get(RUN):
            line["run"] = run
        if record.exc_info and record.exc_info[0] is not None:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


class _Stderr(logging.Handler):
    """Writes each line by one call to the current `sys.stderr`. An error of the stream reaches the caller, as with print."""

    def emit(self, record: logging.LogRecord) -> None:
        if is_on() or record.name != _FLOWERS:  # whose text is written by its own handlers
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()


def stderr_handler(text: str) -> logging.Handler:
    """Return a handler that writes to stderr in the format `text`, or JSON where this process does."""
    handler = _Stderr()
    handler.setFormatter(Lines(text))
    return handler


messages.handlers, messages.propagate = [stderr_handler("%(message)s")], False
messages.setLevel(logging.INFO)


def install() -> None:
    """Let this process, and those that it starts, write JSON from now on."""
    os.environ[LOG] = "json"
    if not any(isinstance(handler, _Stderr) for handler in logging.root.handlers):
        logging.root.addHandler(stderr_handler("%(message)s"))
    logging.captureWarnings(True)
    logging.getLogger(_FLOWERS).addFilter(_by_root)  # has no effect the second time
    sys.excepthook = _log_uncaught
    threading.excepthook = lambda failure: _log_uncaught(
        failure.exc_type, failure.exc_value, failure.exc_traceback
    )


def name_run(run: object) -> None:
    """Let the lines of this process, and of those that it starts from now on, name `run`; nothing where they are text."""
    if is_on():
        os.environ[RUN] = str(run)


def _by_root(record: logging.LogRecord) -> bool:
    """Let the root's handlers write a record instead of the logger's: a filter."""
    if is_on():
        logging.root.handle(record)
    return not is_on()


def _log_uncaught(kind: Any, error: Any, trace: Any) -> None:
    """Log the exception that ends a process or a thread as one line; a thread may end by SystemExit."""
    if kind is not SystemExit:
        messages.critical("%s: %s", kind.__name__, error, exc_info=(kind, error, trace))
