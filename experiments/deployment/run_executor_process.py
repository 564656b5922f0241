"""The process of an executor of runs, which `fedmf server` starts: `python -m experiments.deployment.run_executor_process`."""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import experiments  # noqa: F401  the environment, before any numeric library
from experiments.deployment.lifeline import told
from experiments.deployment.same_code import (
    SERVER_WORK,
    Files,
    OtherCodeError,
    bundled_files,
    installed_files,
    refuse_changed_code,
    refuse_other_code,
    stamp_of,
)

log = logging.getLogger(
    "experiments.deployment.run_executor_process"
)  # not __main__, which this module runs as


def main() -> None:
    """Play the runs of the SuperLink that the starter names, until the starter ends."""
    settings = told(signal.SIGKILL)
    installed = installed_files()  # before the import of what it is compared with
    stamp = stamp_of(installed)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(serve(settings, installed, lambda: stamp_of(installed) != stamp))


def serve(settings: dict[str, Any], installed: Files, has_changed: Callable[[], bool]) -> int:
    """Import everything, then play runs; return the exit code."""
    began = time.monotonic()
    import flwr.superlink.runtime.run_serverapp  # noqa: F401  what a run needs
    import torch  # noqa: F401

    import experiments.deployment.server  # noqa: F401
    from experiments.deployment.apps import show_logs
    from experiments.deployment.flower_tasks import Giver, TaskSource
    from experiments.deployment.run_executor import RunExecutor
    from experiments.deployment.supervisor import RESTART

    show_logs()
    authority = Path(settings["authority"]).read_bytes()
    source = TaskSource(
        settings["address"],
        bytes.fromhex(settings["secret"]),
        Giver("SuperLink", "flwr-serverapp", authority),
    )
    log.info("ready for runs after %.1f s", time.monotonic() - began)
    play = player(settings["address"], authority, installed)
    executor = RunExecutor(source.acquire, play, has_changed, lambda: time.sleep(settings["pause"]))
    return 0 if executor.run() else RESTART


def player(address: str, authority: bytes, installed: Files) -> Callable[[str], int]:
    """Return what plays one run in a child: its code is compared with the installed one, then it is played."""
    from experiments.cli.command import without_traceback
    from experiments.deployment.apps import server_app
    from experiments.deployment.executor import CODE_CHANGED, exit_code
    from experiments.deployment.flower_tasks import play_run

    def play(token: str) -> int:
        changed = []

        def check(bundle: bytes) -> None:
            try:
                refuse_changed_code(installed_files(), installed)
            except OtherCodeError:
                changed.append(True)
                raise
            refuse_other_code(bundled_files(bundle, "serverapp"), installed, SERVER_WORK)

        logging.getLogger("flwr").addFilter(without_traceback)  # it logs what ends the app
        code = exit_code(lambda: play_run(address, token, authority, check, server_app))
        return CODE_CHANGED if changed else code

    return play


if __name__ == "__main__":
    os.umask(0o077)
    main()
