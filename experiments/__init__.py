"""Commands: the one place where mathematics, server, client and configuration meet.

The environment is set here because every entry point imports this package before any numeric library:
spinning OpenMP threads are ruinous on a shared machine, and nothing may call home.
"""

import os
import signal
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.python_api import run as run

__all__ = ["run"]

INTERRUPTED = 130  # exit code after Ctrl-C, SIGTERM or SIGHUP


def __getattr__(name: str) -> Any:
    """Return `run` of the Python API at its first use: commands do not need it."""
    if name == "run":
        from experiments.python_api import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def ending_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that end a command in order: those of Ctrl-C, of `kill`, and of a terminal that is closed.

    The last one is not among them where it is ignored, as under nohup.
    """
    ends = (signal.SIGINT, signal.SIGTERM)
    return ends if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*ends, signal.SIGHUP)


def leave_quietly() -> None:
    """Let these signals end the process without a traceback while a command is imported, which takes seconds.

    At once: an exception raised in an import may be caught by what is imported, and the command would run.
    """
    for number in ending_signals():
        signal.signal(number, lambda *_: os._exit(INTERRUPTED))


if sys.argv[:1] == ["-m"]:  # Python is about to import one of our commands
    leave_quietly()

for _name, _value in {
    "OMP_WAIT_POLICY": "passive",
    "GOMP_SPINCOUNT": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # without it Ray hides all GPUs from a worker that reserves none
}.items():
    os.environ.setdefault(_name, _value)

if os.environ.get("FEDMF_LOG") == "json":  # also of the process that started this one
    from experiments.settings import log as json_log

    json_log.install()
