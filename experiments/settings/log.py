"""What a process writes on stderr: messages and logs, as text or with FEDMF_LOG=json as one JSON object a line.

    {"time": "2026-01-31T12:00:00.123Z", "level": "WARNING", "logger": "server.attendance", "message": "...", "run": "1"}

`messages` is the logger of what a command tells its user; as text it is the message alone, a warning or an error after that
word. Times are in UTC as RFC 3339 has them; an error's `traceback` is a text in the object. `run.log=json`, and `log=json` of a
node, set FEDMF_LOG. Processes that this one starts find it, and the run in FEDMF_RUN, in their environment when they import
`experiments`.
"""

import json
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import TracebackType

LOG, RUN = "FEDMF_LOG", "FEDMF_RUN"  # of the environment
# Flower makes handlers of its own when it is imported, and those of its HTTP server when that starts.
_FLOWERS = ("flwr", "flwr-telemetry", "uvicorn", "uvicorn.error", "uvicorn.access")
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

messages = logging.getLogger("fedmf-messages")


def is_on() -> bool:
    """Return whether this process writes JSON."""
    return os.environ.get(LOG) == "json"


def as_json(record: logging.LogRecord) -> str:
    """Return a record as one line.

    >>> as_json(logging.makeLogRecord({"name": "server", "levelname": "INFO", "msg": "two\\nlines", "created": 0.5}))
    '{"time": "1970-01-01T00:00:00.500Z", "level": "INFO", "logger": "server", "message": "two\\\\nlines"}'
    """
    time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    said = {
        "time": time.replace("+00:00", "Z"),
        "level": record.levelname,
        "logger": record.name,
        "message": _COLOURS.sub("", record.getMessage()),
    }
    if run := os.environ.get(RUN):
        said["run"] = run
    formatter, trace = logging.Formatter(), [record.stack_info] if record.stack_info else []
    if record.exc_info and record.exc_info[0] is not None:
        trace.insert(0, formatter.formatException(record.exc_info))
    return json.dumps(said | ({"traceback": "\n".join(trace)} if trace else {}))


def in_either_form(handler: logging.Handler) -> logging.Handler:
    """Let a handler write JSON whenever this process does, and its own text otherwise; return it."""
    text = handler.format
    if "format" not in vars(handler):  # not done before
        handler.format = lambda record: as_json(record) if is_on() else text(record)  # type: ignore[method-assign]
    return handler


class _Stderr(logging.Handler):
    """Writes to whatever stderr is then, a line by one call. An error of the stream is the caller's, as with print."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(self.format(record) + "\n")
        sys.stderr.flush()


class _Message(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        return f"{level}{record.getMessage()}"


def stderr_handler(text: str | logging.Formatter) -> logging.Handler:
    """Return a handler that writes to stderr in the format `text`, or JSON where this process does."""
    handler = _Stderr()
    handler.addFilter(lambda record: record.name not in _FLOWERS)  # which have handlers of their own
    handler.setFormatter(logging.Formatter(text) if isinstance(text, str) else text)
    return in_either_form(handler)


messages.handlers, messages.propagate = [stderr_handler(_Message())], False
messages.setLevel(logging.INFO)


def install_if_asked() -> None:
    """Write JSON where FEDMF_LOG is json. Exits for a value that is neither text nor json."""
    asked = os.environ.get(LOG, "text")
    if asked == "json":
        install()
    elif asked != "text":
        sys.exit(f"error: {LOG} is {asked!r}; it must be text or json.")


def install() -> None:
    """Let this process write JSON from now on, and those that it starts."""
    os.environ[LOG] = "json"
    for name in _FLOWERS:
        logging.getLogger(name).addFilter(_convert)  # once, however often it is asked
    in_either_form(logging.lastResort or logging.StreamHandler())
    warned = logging.getLogger("py.warnings")
    warned.handlers, warned.propagate = [stderr_handler("%(message)s")], False
    logging.captureWarnings(True)
    sys.excepthook, threading.excepthook = _log_uncaught, _log_uncaught_in_thread


@contextmanager
def written(as_json: bool, run: object) -> Iterator[None]:
    """Write JSON that names `run` while the block lasts, if asked to; a process that does so anyway continues after it."""
    if not as_json or is_on():
        name_run(run)
        yield
        return
    hooks = sys.excepthook, threading.excepthook
    install()
    name_run(run)
    try:
        yield
    finally:
        sys.excepthook, threading.excepthook = hooks
        logging.captureWarnings(False)
        del os.environ[LOG], os.environ[RUN]


def name_run(run: object) -> None:
    """Let the lines of this process, and of those that it starts from now on, name `run`; nothing where they are text."""
    if is_on():
        os.environ[RUN] = str(run)


def _convert(record: logging.LogRecord) -> bool:
    """Let the handlers of Flower's loggers write JSON: a filter that lets all records pass."""
    for handler in (handler for name in _FLOWERS for handler in logging.getLogger(name).handlers):
        if not isinstance(handler, logging.FileHandler):
            in_either_form(handler)
    return True


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    messages.critical("%s: %s", kind.__name__, error, exc_info=(kind, error, trace))


def _log_uncaught_in_thread(said: threading.ExceptHookArgs) -> None:
    if said.exc_type is not SystemExit and said.exc_value is not None:
        _log_uncaught(said.exc_type, said.exc_value, said.exc_traceback)
