"""A warm start for Flower's programs: `python -m experiments.deployment.warm [--until-eof] flower-supernode ARGUMENTS`.

Flower starts a process for each task, `flwr-clientapp` or `flwr-serverapp`, which it finds by name on PATH; nearly all
of its time goes into imports. This process imports once and then starts the program that it is given, with a folder
before the others on PATH that holds two small programs of these names. Each of them hands its arguments, its environment
and its streams to this process and waits; a fork of this process is then the task, and calls Flower's own entry point.

A fork runs the code that is installed here and imports nothing from the bundle that a run brings; `deployment.apps`
compares both. This process has one thread, opens no device and trains nothing, so that its forks may do all of that. With
--until-eof it ends the program when its own standard input ends: when whoever started it is gone.
"""

import contextlib
import gc
import json
import logging
import os
import random
import selectors
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from types import FrameType
from typing import NoReturn

import experiments  # noqa: F401  the environment, before any numeric library
from server.files import write_atomically

log = logging.getLogger("experiments.deployment.warm")  # not __main__, which this module runs as

TASKS = ("flwr-clientapp", "flwr-serverapp")
UNTIL_EOF = "--until-eof"
GRACE = 8.0  # seconds for tasks to end when the program has ended
_LOOK = 0.05  # seconds between two looks at what has ended
_LENGTH = 8  # bytes of the length of what is handed over
_ASKING = """\
#!{python} -IS
import json, os, socket, sys
link = socket.socket(socket.AF_UNIX)
link.connect({address!r})
told = json.dumps([{name!r}, sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(link, [len(told).to_bytes({length}, "big")], [0, 1, 2])
link.sendall(told)
code = link.recv(1)
sys.exit(code[0] if code else 1)
"""


def main(arguments: Sequence[str]) -> int:
    """Import, start the program that `arguments` name and play its tasks until it ends; return its exit code."""
    until_eof = arguments[:1] == [UNTIL_EOF]
    command = arguments[1:] if until_eof else arguments
    if not command:
        sys.exit(__doc__)
    import_all()
    gc.collect()
    gc.freeze()  # the garbage collector of a fork then leaves the pages of what is here now shared
    with tasks_socket() as (listener, folder):
        environment = {
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",  # seconds; Flower's own is 1
            **os.environ,
            "PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        }
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)

        def end(number: int, frame: FrameType | None) -> None:
            process.send_signal(number)

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, end)
        try:
            with Tasks(listener, until_eof=until_eof) as tasks:
                while process.poll() is None:
                    if tasks.look():
                        process.terminate()
        finally:
            process.terminate()  # it does nothing to one that has ended
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def import_all() -> None:
    """Import what tasks need. None of it starts a thread or opens a device."""
    from experiments.run_files.provenance import own_code

    own_code()  # the digest of what is imported next, kept for the forks

    import flwr.superlink.cli
    import flwr.supernode.cli  # noqa: F401
    import torch

    import experiments.deployment.apps  # noqa: F401

    torch.set_num_threads(1)


@contextlib.contextmanager
def tasks_socket() -> Iterator[tuple[socket.socket, Path]]:
    """Listen in a folder of this account's own that holds the programs which ask; both are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="fedmf-warm-") as name, socket.socket(socket.AF_UNIX) as listener:
        folder = Path(name)
        address = str(folder / "socket")
        listener.bind(address)
        listener.listen()
        for task in TASKS:
            text = _ASKING.format(python=sys.executable, address=address, name=task, length=_LENGTH)
            write_atomically(folder / task, text.encode(), mode=stat.S_IRWXU)
        yield listener, folder


class Tasks:
    """The tasks that are being played, each in a fork; a context, at whose end none is left."""

    def __init__(self, listener: socket.socket, *, until_eof: bool = False) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        if until_eof:
            self._selector.register(sys.stdin, selectors.EVENT_READ)
        self._links: dict[int, socket.socket] = {}  # of each fork, to the program that asked for it

    def __enter__(self) -> "Tasks":
        """Return the tasks; there are none yet."""
        return self

    def __exit__(self, *error: object) -> None:
        """Ask every task to end, and after a while end it."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for child in self._links:
                os.kill(child, number)
            for _ in range(round(GRACE / _LOOK)):
                if self._links:
                    self.look()
        self._selector.close()

    def look(self) -> bool:
        """Begin and end tasks as they are asked for, and notice which have ended; say whether standard input has ended."""
        has_ended = False
        for key, _ in self._selector.select(_LOOK):
            if key.fileobj is self._listener:
                self._begin()
                continue
            self._selector.unregister(key.fileobj)
            if key.fileobj is sys.stdin:
                has_ended = True
            else:  # the program that asked has ended
                os.kill(key.data, signal.SIGTERM)
        for child, link in list(self._links.items()):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                del self._links[child]
                self._answer(link, status)
        return has_ended

    def _begin(self) -> None:
        link, _ = self._listener.accept()
        link.settimeout(GRACE)
        try:
            length, streams, _, _ = socket.recv_fds(link, _LENGTH, 3)
            with link.makefile("rb") as file:
                told = json.loads(file.read(int.from_bytes(length, "big")))
        except (OSError, ValueError):  # it ended before it had said what it wants
            link.close()
            return
        try:
            child = os.fork()
        except OSError as error:  # the program that asked ends with 1, and Flower answers for it
            log.error("a task could not be begun: %s", error)
            link.close()
        else:
            if not child:
                self._play(streams, *told)
            self._links[child] = link
            self._selector.register(link, selectors.EVENT_READ, child)
        for stream in streams:
            os.close(stream)

    def _answer(self, link: socket.socket, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            log.error("a task's process was killed by %s", signal.Signals(-code).name)
        with contextlib.suppress(KeyError):
            self._selector.unregister(link)
        with contextlib.suppress(OSError):
            link.send(bytes([code if code >= 0 else 1]))
        link.close()

    def _play(
        self,
        streams: Sequence[int],
        name: str,
        arguments: list[str],
        folder: str,
        environment: dict[str, str],
    ) -> NoReturn:
        """Be the program `name`, in the fork."""
        code = 1
        try:
            self._selector.close()
            self._listener.close()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            for place, stream in enumerate(streams):
                os.dup2(stream, place)
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            sys.argv = [name, *arguments]
            fresh_generators()
            refuse_bundles()
            (program,) = entry_points(group="console_scripts", name=name)
            program.load()()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            log.exception("a task's process failed")
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)  # without waiting for threads of Flower's


def fresh_generators() -> None:
    """Seed the global generators from the operating system, as in a new process: a fork begins with its parent's.

    Nothing of ours draws from them; a model or a loader of somebody's own may.
    """
    import numpy as np
    import torch

    random.seed()
    np.random.seed()  # noqa: NPY002
    torch.seed()


class _NoModules:
    """The finder of a folder from which nothing is imported."""

    @staticmethod
    def find_spec(name: str, target: object = None) -> None:
        """Find nothing."""


def refuse_bundles() -> None:
    """Import no module from a bundle in this process, whatever it names: a node runs what is installed on it."""
    from experiments.deployment.apps import bundles

    folder = bundles()

    def finder(path: str) -> _NoModules:
        if not Path(path).resolve().is_relative_to(folder):
            raise ImportError("not the folder of a bundle")
        return _NoModules()

    sys.path_hooks.insert(0, finder)


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main(sys.argv[1:]))
