"""The process of an executor, which `fedmf node` starts: `python -m experiments.deployment.executor_process`."""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import experiments  # noqa: F401  the environment, before any numeric library
from experiments.deployment.lifeline import told
from experiments.deployment.same_code import (
    Files,
    OtherCodeError,
    installed_files,
    refuse_changed_code,
    refuse_other_code,
)

log = logging.getLogger("experiments.deployment.executor_process")  # not __main__, which this module runs as

SLOW = 1.0  # seconds between two questions of an executor that nothing was asked of


def main() -> None:
    """Play the tasks of the SuperNode that the starter names, until the starter ends."""
    settings = told(signal.SIGKILL)
    installed = installed_files()  # before the import of what it is compared with
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(serve(settings, installed))


def serve(settings: dict[str, Any], installed: Files) -> int:
    """Import everything, then play tasks; return the exit code."""
    began = time.monotonic()
    import torch

    from experiments.cli.command import without_traceback
    from experiments.deployment.apps import show_logs
    from experiments.deployment.executor import Executor, warn_of_shared_generators
    from experiments.deployment.flower_parts import Pauses
    from experiments.deployment.flower_tasks import TaskSource
    from experiments.deployment.resident import Resident
    from experiments.deployment.supervisor import RESTART

    torch.set_num_threads(1)
    show_logs()
    logging.getLogger("flwr").addFilter(without_traceback)
    resident = Resident(settings["overrides"])
    source = TaskSource(settings["address"], bytes.fromhex(settings["secret"]))
    pauses = Pauses(settings["pause"], SLOW)
    generators: set[str] = set()  # that were spoken of
    warn_of_shared_generators(generators)

    def pause(has_worked: bool) -> None:
        if has_worked:
            pauses.worked()
        time.sleep(pauses.seconds())

    def notice(overrides: str) -> None:
        if overrides:
            resident.learn_run(overrides)
        resident.refresh()
        warn_of_shared_generators(generators)

    said = "ready for messages" if resident.is_ready else "waits for messages, and is not ready,"
    log.info("%s after %.1f s", said, time.monotonic() - began)
    plays = player(settings["address"], resident, installed)
    in_vain = waiting(settings["address"], resident)
    has_ended = Executor(source.acquire, plays, notice, pause, in_vain=in_vain).run()
    return 0 if has_ended else RESTART


def waiting(address: str, resident: Any) -> Callable[[str, str, float], str]:
    """Return what says why nobody waits for a task's answer: the SuperNode has given it up, or the run's server has."""
    from experiments.deployment.flower_tasks import is_known

    def in_vain(token: str, overrides: str, seconds: float) -> str:
        if is_known(address, token) is False:
            return "the SuperNode no longer counts it alive (it was not heard of for a minute, or the SuperNode started again)"
        longest = resident.longest(overrides)
        if longest is not None and seconds > longest:
            return (
                f"it hangs, or is too slow for this run, whose server waited for its answer for half of {longest:g} s at most "
                "(engine.round_timeout)"
            )
        return ""

    return in_vain


def player(address: str, resident: Any, installed: Files) -> Callable[[str, Callable[[str], None]], int]:
    """Return what plays one task in a child: the run's code is compared with the installed one, then its message played.

    Where they differ the app is not called: the reply says that and nothing else.
    """
    from flwr.app import Context, Message

    from experiments.deployment.executor import CODE_CHANGED, exit_code
    from experiments.deployment.flower_tasks import play_task
    from experiments.deployment.node import OVERRIDES, answer_other_code
    from experiments.deployment.same_code import bundled_files
    from experiments.settings import log as json_log

    def play(token: str, tell: Callable[[str], None]) -> int:
        app, changed = resident.app(), []
        refused: list[OtherCodeError] = []

        def check(bundle: bytes) -> None:
            try:
                refuse_changed_code(installed_files(), installed)
            except OtherCodeError as error:
                changed.append(True)
                refused.append(error)
                return
            try:
                refuse_other_code(bundled_files(bundle), installed)
            except OtherCodeError as error:
                refused.append(error)

        def heard(message: Message, context: Context) -> Message:
            if refused:
                json_log.name_run(context.run_id)
                log.error("%s", refused[0])
                return answer_other_code(message)
            tell(str(context.run_config.get(OVERRIDES, "")))
            reply: Message = app(message, context)
            return reply

        code = exit_code(lambda: play_task(address, token, check, heard))
        return CODE_CHANGED if changed else code

    return play


if __name__ == "__main__":
    os.umask(0o077)
    main()
