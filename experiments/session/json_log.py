"""What a process says on stderr, each line one JSON object: `run.log=json`, `log=json` of a node, or FEDMF_LOG=json.

    {"time": "2026-01-31T12:00:00.123Z", "level": "WARNING", "logger": "server.attendance", "message": "...", "run": "1"}

Times are in UTC as RFC 3339 has them; an error's `traceback` is a text of its own in the object. Lines that are printed past
the loggers (progress, warnings, what a library writes) become objects too, of the logger "stderr". Processes that this one
starts do the same: they find FEDMF_LOG, and the run in FEDMF_RUN, in their environment when they import `experiments`.

Flower makes its own handlers when it is imported, and its HTTP server when it starts, which may be later: their loggers
have a filter that replaces them at the first record.
"""

import io
import json
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TextIO

LOG, RUN = "FEDMF_LOG", "FEDMF_RUN"  # of the environment
PRINTED = "stderr"  # the logger of lines that none wrote
# Loggers of Flower and of its HTTP server.
_LATE = ("flwr", "flwr-telemetry", "uvicorn", "uvicorn.error", "uvicorn.access")
_BEGINNING = '{"time": "'
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LEVELS = (("error:", "ERROR"), ("warning:", "WARNING"))

_hooks = (sys.excepthook, threading.excepthook)


def is_on() -> bool:
    """Say whether this process writes JSON."""
    return isinstance(sys.stderr, Lines)


def install_if_asked() -> None:
    """Write JSON where FEDMF_LOG says so. Exits for a value that is neither text nor json."""
    asked = os.environ.get(LOG, "text")
    if asked == "json":
        install()
    elif asked != "text":
        sys.exit(f"error: {LOG} is {asked!r}; it must be text or json.")


def name_run(run: object) -> None:
    """Let the lines of this process, and of those that it starts from now on, name `run`; nothing where they are text."""
    if is_on():
        os.environ[RUN] = str(run)


def install() -> None:
    """Let everything that this process says on stderr be JSON from now on, and what its future children say."""
    os.environ[LOG] = "json"
    # Flower puts a function in the place of `write` that copies to the SuperLink.
    if not is_on() or "write" in vars(sys.stderr):
        sys.stderr = Lines(sys.stderr)
    for logger in (logging.root, *list(logging.root.manager.loggerDict.values())):
        if isinstance(logger, logging.Logger):
            _convert(logger)
    if not logging.root.handlers:
        logging.root.addHandler(stderr_handler(""))
    for name in _LATE:
        logging.getLogger(name).addFilter(_convert_first)  # once, however often it is asked
    logging.captureWarnings(True)
    sys.excepthook, threading.excepthook = _log_uncaught, _log_uncaught_in_thread


def uninstall() -> None:
    """Write text again: lines, and records of loggers without a handler of their own."""
    os.environ.pop(LOG, None)
    os.environ.pop(RUN, None)
    while isinstance(sys.stderr, Lines):
        sys.stderr.finish()
        sys.stderr = sys.stderr.target
    for logger in (logging.root, *list(logging.root.manager.loggerDict.values())):
        for handler in list(getattr(logger, "handlers", ())):
            if isinstance(handler, _JsonHandler):
                logger.removeHandler(handler)  # type: ignore[union-attr]
                if handler.replaced is not None:
                    logger.addHandler(handler.replaced)  # type: ignore[union-attr]
                    logger.propagate = handler.propagated  # type: ignore[union-attr]
    for name in _LATE:
        logging.getLogger(name).removeFilter(_convert_first)
    logging.captureWarnings(False)
    sys.excepthook, threading.excepthook = _hooks


def with_stdout() -> None:
    """Let what is printed on stdout be JSON too, of a process whose stdout is part of its log."""
    if is_on() and (not isinstance(sys.stdout, Lines) or "write" in vars(sys.stdout)):
        sys.stdout = Lines(sys.stdout)


@contextmanager
def written(as_json: bool, run: object) -> Iterator[None]:
    """Write JSON that names `run` while the block lasts, if asked to; a process that does so anyway goes on after it."""
    if not as_json or is_on():
        name_run(run)
        yield
        return
    install()
    name_run(run)
    try:
        yield
    finally:
        uninstall()


def stderr_handler(text: str) -> logging.Handler:
    """Return a handler that writes to stderr: JSON where this process does, otherwise in the format `text`."""
    if is_on():
        return _JsonHandler()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(text))
    return handler


def as_object(level: str, logger: str, message: str, seconds: float, trace: str | None = None) -> str:
    """Return one line of the log; `seconds` since 1970.

    >>> as_object("INFO", "server.strategy", 'two\\nlines', 0.5)
    '{"time": "1970-01-01T00:00:00.500Z", "level": "INFO", "logger": "server.strategy", "message": "two\\\\nlines"}'
    """
    time = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    said: dict[str, Any] = {"time": time, "level": level, "logger": logger, "message": message}
    if run := os.environ.get(RUN):
        said["run"] = run
    if trace is not None:
        said["traceback"] = trace
    return json.dumps(said)


class JsonFormatter(logging.Formatter):
    """Makes one JSON object of a record, its traceback and stack inside."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        parts = []
        if record.exc_info and record.exc_info[0] is not None:
            parts.append(self.formatException(record.exc_info))
        if record.stack_info:
            parts.append(self.formatStack(record.stack_info))
        message = _COLOURS.sub("", record.getMessage())
        return as_object(
            record.levelname, record.name, message, record.created, "\n".join(parts) if parts else None
        )


class Lines(io.TextIOBase):
    """A stream that writes each line as a JSON object to `target`, and those that are objects of ours as they are.

    A line is written whole, by one call, whichever threads write others; it has no lock, so that a fork finds none held.
    What follows a carriage return takes the place of what stood before it, as on a terminal.
    """

    def __init__(self, target: TextIO) -> None:
        self.target = target
        self._begun = threading.local()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """That of the target."""
        return getattr(self.target, "encoding", None) or "utf-8"

    def writable(self) -> bool:
        """Return True."""
        return True

    def isatty(self) -> bool:
        """Return False: nothing here may change in place."""
        return False

    def fileno(self) -> int:
        """Return the target's."""
        return self.target.fileno()

    def write(self, text: str) -> int:
        """Write the lines that `text` completes, and keep the rest."""
        *lines, rest = (getattr(self._begun, "text", "") + text).split("\n")
        self._begun.text = rest.rpartition("\r")[2] if not rest.endswith("\r") else rest
        for line in lines:
            self._write_line(line)
        return len(text)

    def flush(self) -> None:
        """Flush the target; a line that has begun waits for its end."""
        self.target.flush()

    def finish(self) -> None:
        """Write the line that this thread has begun, as if it were complete."""
        if rest := getattr(self._begun, "text", ""):
            self._begun.text = ""
            self._write_line(rest)

    def _write_line(self, line: str) -> None:
        if not line.startswith(_BEGINNING):
            shown = _COLOURS.sub("", line.rstrip("\r").rpartition("\r")[2]).rstrip()
            if not shown:
                return
            level = next((level for start, level in _LEVELS if shown.startswith(start)), "INFO")
            line = as_object(level, PRINTED, shown, datetime.now(UTC).timestamp())
        self.target.write(line + "\n")
        self.target.flush()


class _JsonHandler(logging.StreamHandler[TextIO]):
    """Writes records as JSON to whatever stderr is then; `replaced` is the handler in whose place it stands."""

    def __init__(self, replaced: logging.Handler | None = None, *, propagated: bool = True) -> None:
        logging.Handler.__init__(self, logging.NOTSET if replaced is None else replaced.level)
        self.setFormatter(JsonFormatter())
        self.replaced, self.propagated = replaced, propagated
        self.filters = [] if replaced is None else list(replaced.filters)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def _convert(logger: logging.Logger) -> None:
    """Replace the handlers of `logger` that write to stderr or stdout by ours, and let no other repeat what they write."""
    streams = [sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__]
    streams += [stream.target for stream in streams if isinstance(stream, Lines)]
    for handler in list(logger.handlers):
        if not isinstance(handler, logging.StreamHandler) or isinstance(
            handler, _JsonHandler | logging.FileHandler
        ):
            continue
        if logger.name in _LATE or any(handler.stream is stream for stream in streams):
            logger.removeHandler(handler)
            logger.addHandler(_JsonHandler(handler, propagated=logger.propagate))
            logger.propagate = False


def _convert_first(record: logging.LogRecord) -> bool:
    """Replace the handlers of loggers that make theirs late; a filter of them that lets all records pass."""
    for name in _LATE:
        _convert(logging.getLogger(name))
    return True


def _log_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None, thread: str = ""
) -> None:
    """Write what ends a process, or a thread, as one object."""
    where = f" in thread {thread}" if thread else ""
    text = "".join(traceback.format_exception(kind, error, trace)).rstrip()
    line = as_object(
        "CRITICAL", PRINTED, f"{kind.__name__}: {error}{where}", datetime.now(UTC).timestamp(), text
    )
    print(line, file=sys.stderr, flush=True)


def _log_uncaught_in_thread(said: threading.ExceptHookArgs) -> None:
    if said.exc_type is not SystemExit and said.exc_value is not None:
        name = said.thread.name if said.thread is not None else "unknown"
        _log_uncaught(said.exc_type, said.exc_value, said.exc_traceback, name)
