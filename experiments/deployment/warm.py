"""A warm start for Flower's programs: `python -m experiments.deployment.warm [--until-eof] flower-supernode ARGUMENTS`.

Flower starts a process for each task, `flwr-clientapp` or `flwr-serverapp`, which it finds by name on PATH; nearly all
of its time goes into imports. This process imports once and then starts the program that it is given, with a folder
before the others on PATH that holds two small programs of these names. Each of them hands its arguments, its environment
and its streams to this process and waits; a fork of this process is then the task, and calls Flower's own entry point.

A fork runs the code that is installed here and imports nothing from the bundle that a run brings, wherever Flower
unpacks it; `deployment.apps` compares both. Flower's programs for other kinds of apps are not run. This process has one
thread, opens no device and trains nothing, so that its forks may do all of that. With --until-eof it ends the program
when its own standard input ends: when the process that started it has ended.
"""

import contextlib
import gc
import json
import logging
import multiprocessing
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from importlib.metadata import distribution, entry_points
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType

import experiments  # noqa: F401  the environment, before any numeric library
from server.files import write_atomically

log = logging.getLogger("experiments.deployment.warm")  # not __main__, which this module runs as

TASKS = ("flwr-clientapp", "flwr-serverapp")
UNTIL_EOF = "--until-eof"
GRACE = 8.0  # seconds for tasks to end when the program has ended
_LOOK = 0.05  # seconds between two looks at what has ended
_ASKING = """\
#!{python} -IS
import json, os, socket, sys
link = socket.socket(socket.AF_UNIX)
link.connect({address!r})
told = json.dumps([{name!r}, sys.argv[1:], os.getcwd(), dict(os.environ)]) + "\\n"
socket.send_fds(link, [b"streams"], [0, 1, 2])
link.sendall(told.encode())
code = link.recv(1)
sys.exit(code[0] if code else 1)
"""
_REFUSING = """\
#!{python} -IS
raise SystemExit("{name} is not run here: only the server app and the client app that are installed are.")
"""


def main(arguments: Sequence[str]) -> int:
    """Import, start the program that `arguments` name and run its tasks until it ends; return its exit code."""
    inputs = [sys.stdin] if arguments[:1] == [UNTIL_EOF] else []
    command = arguments[len(inputs) :]
    if not command:
        sys.exit(__doc__)
    import_all()
    gc.collect()
    gc.freeze()  # the garbage collector of a fork then leaves the pages of what is here now shared
    tasks: dict[BaseProcess, socket.socket] = {}  # and the program that asked for each
    with tasks_socket() as (listener, folder):
        environment = {
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",  # seconds; Flower's own is 1
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # a bundle installs nothing
            **os.environ,
            "PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        }
        asked: list[int] = []  # signals to hand on
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: asked.append(number))
        program = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
        try:
            while program.poll() is None:
                ready, _, _ = select.select(
                    [listener, *inputs, *(task.sentinel for task in tasks)], [], [], _LOOK
                )
                while asked:
                    program.send_signal(asked.pop(0))
                if listener in ready:
                    begin(listener, tasks)
                if sys.stdin in ready:
                    inputs = []
                    program.terminate()
                for task in [task for task in tasks if task.exitcode is not None]:
                    answer(tasks.pop(task), task)
        finally:
            program.terminate()  # it does nothing to one that has ended
            end(list(tasks))
    return program.returncode if program.returncode >= 0 else 128 - program.returncode


def import_all() -> None:
    """Import what tasks need. None of it starts a thread or opens a device."""
    from experiments.run_files.provenance import own_code

    own_code()  # the digest of what is imported next, kept for the forks

    import torch

    import experiments.deployment.apps  # noqa: F401

    for name in TASKS:
        entry_points(group="console_scripts")[name].load()
    torch.set_num_threads(1)


@contextlib.contextmanager
def tasks_socket() -> Iterator[tuple[socket.socket, Path]]:
    """Listen in a folder of this account's own with the programs that ask or refuse; both are gone afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="fedmf-warm-") as place,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        folder = Path(place)
        address = str(folder / "socket")
        listener.bind(address)
        listener.listen()
        for name in distribution("flwr").entry_points.names:
            if name.startswith("flwr-"):
                text = _ASKING if name in TASKS else _REFUSING  # others would run what a bundle brings
                program = text.format(python=sys.executable, address=address, name=name)
                write_atomically(folder / name, program.encode(), mode=stat.S_IRWXU)
        yield listener, folder


def begin(listener: socket.socket, tasks: dict[BaseProcess, socket.socket]) -> None:
    """Add the fork that runs the task of the next program which asks to `tasks`; log where no process can begin."""
    link, _ = listener.accept()
    task = multiprocessing.get_context("fork").Process(target=run_task, args=(link,))
    try:
        task.start()
        tasks[task] = link
    except OSError as error:
        link.close()  # the program that asked ends with 1, and Flower answers for it
        log.error("a task could not be begun: %s", error)


def answer(link: socket.socket, task: BaseProcess) -> None:
    """Tell the program that asked for a task with which code this has ended, and log a signal that ended it."""
    code = task.exitcode or 0
    if code < 0:
        log.error("a task's process was killed by %s", signal.Signals(-code).name)
    with link, contextlib.suppress(OSError):  # it may have ended first
        link.send(bytes([code if 0 <= code < 256 else 1]))


def end(tasks: Sequence[BaseProcess]) -> None:
    """Ask every task to end, and after `GRACE` seconds in all end it."""
    for task in tasks:
        task.terminate()
    deadline = time.monotonic() + GRACE
    for task in tasks:
        task.join(max(0.0, deadline - time.monotonic()))
        task.kill()
        task.join()


def run_task(link: socket.socket) -> None:
    """Be the program that is asked for through `link`: the whole of a fork."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _, streams, _, _ = socket.recv_fds(link, len(b"streams"), 3)
    with link.makefile("rb") as file:
        name, arguments, folder, environment = json.loads(file.readline())
    threading.Thread(target=end_with, args=(link,), daemon=True).start()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [name, *arguments]
    fresh_generators()
    sys.meta_path.insert(0, NoBundle())  # whatever a bundle names: a node runs what is installed on it
    (program,) = entry_points(group="console_scripts", name=name)
    program.load()()


def end_with(link: socket.socket) -> None:
    """End this process when the program at the other end of `link` has ended."""
    link.recv(1)
    os.kill(os.getpid(), signal.SIGTERM)


def fresh_generators() -> None:
    """Seed the global generators from the operating system, as in a new process: a fork begins with its parent's.

    Nothing of ours draws from them; a custom model or loader may. Python seeds its own in every fork.
    """
    import numpy as np
    import torch

    np.random.seed()  # noqa: NPY002
    torch.seed()


class NoBundle:
    """The first finder of modules in a fork: it finds none, and takes bundles off the path before others look there."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        from experiments.deployment.apps import bundles

        bundles()
        return None


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main(sys.argv[1:]))
