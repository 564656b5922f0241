"""A whole deployment on one machine: SuperLink, SuperNodes and operator, on the loopback interface only.

The commands are those of docs/deployment.md; here a program types them. Used by `experiments.deploy_demo` and by
the integration tests. Everything that is secret (keys, certificates, the SuperLink's database) lies in one folder
that is removed at the end; where this process is killed, `deployment.last_will` ends the others and removes it.
"""

import contextlib
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from experiments.deployment import last_will
from experiments.deployment.certificates import make_certificates, make_node_key
from experiments.deployment.killing import KILLED, kill_at, still_there
from experiments.deployment.lifeline import undisturbed
from experiments.settings.compose import split
from experiments.settings.log import messages
from experiments.settings.reference import CONF
from fedmf.errors import RunStoppedError
from server.files import open_no_link, write_atomically

HOST = "127.0.0.1"
APP = CONF.parent  # what `flwr run` bundles
BIN = Path(sys.executable).parent
_MEMORY = Path("/dev/shm")
_GRACE = 10.0  # seconds for a process to end by itself


class Loopback:
    """The processes of one deployment: a context, at whose end all are stopped and the folder is removed."""

    def __init__(self, *, superlink_port: int | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fedmf-", dir=_MEMORY if _MEMORY.is_dir() else None))
        self._will = last_will.start(self.folder)  # before there is anything that it must not outlive
        self.certificates = make_certificates(self.folder, HOST)
        self.port = superlink_port or free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._homes: dict[str, Path] = {}

    def __enter__(self) -> Self:
        """Return the deployment, in which nothing runs yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End every process and remove the folder; what else interrupts meanwhile waits."""
        with undisturbed():
            for name in reversed(list(self._processes)):
                self.stop(name)
            shutil.rmtree(self.folder, ignore_errors=True)
            assert self._will.stdin is not None
            self._will.stdin.close()
            self._will.wait()

    def start_superlink(self, *, warm: bool = True) -> None:
        """Start the SuperLink and return when it listens; started again, it goes on with its database.

        As `fedmf server`, whose executor plays the runs; not `warm`: as flower-superlink, which starts a process for each.
        """
        files, database = self.certificates, self.folder / "superlink.db"
        of_warm: list[str | Path] = [
            *(sys.executable, "-m", "experiments.server", f"address={HOST}:{self.port}"),
            *(f"certificate={files.certificate}", f"key={files.key}", f"authority={files.authority}"),
            f"database={database}",
        ]
        of_flower: list[str | Path] = [
            BIN / "flower-superlink",
            *("--host", HOST, "--port", str(self.port)),
            *("--ssl-certfile", files.certificate, "--ssl-keyfile", files.key),
            *("--ssl-ca-certfile", files.authority),
            *("--enable-supernode-auth", "--database", database),
            "--disable-runtime-dependency-installation",
        ]
        self.start("superlink", of_warm if warm else of_flower)
        self.wait_for_port("superlink", self.port)
        connection = (
            f'[superlink.loopback]\naddress = "{HOST}:{self.port}"\nroot-certificates = "{files.authority}"\n'
        )
        home = self.home("operator")
        write_atomically(home / "config.toml", connection.encode())

    def register(self, node: str) -> None:
        """Make a key pair for `node` and tell the SuperLink its public half."""
        self.call("flwr", "supernode", "register", make_node_key(self.folder, node), "loopback")

    def start_supernode(
        self, node: str, overrides: str, *, command: Sequence[str | Path] = (), port: int | None = None
    ) -> None:
        """Start a registered node, or one that was stopped; `overrides` say whose data it holds.

        `command` replaces flower-supernode; `port` is another way to the SuperLink than its own (a proxy).
        """
        self.start(
            node,
            [
                *(command or [BIN / "flower-supernode"]),
                *("--superlink", f"{HOST}:{port or self.port}", "--host", HOST, "--port", str(free_port())),
                *("--root-certificates", self.certificates.authority),
                *("--auth-supernode-private-key", self.folder / node),
                *("--node-config", f'overrides="{overrides}"'),
            ],
        )

    def start_node(
        self, node: str, overrides: str, *, command: Sequence[str] = (), port: int | None = None
    ) -> None:
        """Start a registered node, or one that was stopped, as `fedmf node`; `overrides` say whose data it holds.

        `command` replaces the start of the command line, `port` as in `start_supernode`.
        """
        files = (
            f"root_certificates={self.certificates.authority}",
            f"private_key={self.folder / node}",
            f"superlink={HOST}:{port or self.port}",
        )
        program = command or [sys.executable, "-m", "experiments.node"]
        self.start(node, [*program, *files, *split(overrides)])

    def submit(self, overrides: str) -> subprocess.Popen[bytes]:
        """Start `flwr run`, whose log it follows until the run ends; its output is the log "run"."""
        settings = f'overrides="{overrides}"'
        return self.start(
            "run", [BIN / "flwr", "run", APP, "loopback", "--stream", "-c", settings], home="operator"
        )

    def call(self, program: str, *arguments: str | Path) -> str:
        """Return the output of one of Flower's commands, run as the operator; raises `RunStoppedError` if it fails."""
        done = subprocess.run(
            [BIN / program, *arguments],
            env=self.environment("operator"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RunStoppedError(
                f"{program} {' '.join(map(str, arguments))} ended with {done.returncode}: {done.stdout[-2000:]}"
            )
        return done.stdout

    def start(
        self, name: str, command: Sequence[str | Path], *, home: str | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process in a group and with a Flower home of its own, by which all that it starts is found again."""
        with open(self.log(name), "ab", opener=open_no_link) as log:
            process = subprocess.Popen(
                [str(part) for part in command],
                env=self.environment(home or name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=0o077,
            )
        self._processes[name], self._homes[name] = process, self.home(home or name)
        return process

    def stop(self, name: str) -> None:
        """Ask a process to end, and after a while end it with everything that it started."""
        process = self._processes[name]
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE)
        self.kill(name)

    def kill(self, name: str) -> None:
        """End a process and everything that it started at once, as a power cut would.

        A SuperLink's server app is in a group of its own and may outlive it: it is found by its Flower home.
        """
        process = self._processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILLED)
        if left := kill_at([self._homes.pop(name)]):
            messages.warning(f"{still_there(left)}.")

    def is_known(self, name: str) -> bool:
        """Say whether a process was started under this name and not ended by this deployment since."""
        return name in self._processes

    def is_running(self, name: str) -> bool:
        """Say whether the process of this name runs."""
        return name in self._processes and self._processes[name].poll() is None

    def refuse_ended(self) -> None:
        """Raise `RunStoppedError` with the end of its log if SuperLink or a SuperNode ended by itself.

        So it does where nothing would end them and remove the keys any more, were this process killed.
        """
        if (code := self._will.poll()) is not None:
            raise RunStoppedError(f"the process that cleans up after a killed one ended with {code}.")
        for name, process in self._processes.items():
            if name != "run" and process.poll() is not None:
                raise RunStoppedError(f"{name} ended with {process.returncode}:\n{self.tail(name)}")

    def log(self, name: str) -> Path:
        """Return the file that holds what a process printed."""
        return self.folder / f"{name}.log"

    def tail(self, name: str, lines: int = 30) -> str:
        """Return the last lines of a process's log."""
        file = self.log(name)
        return "\n".join(file.read_text(errors="replace").splitlines()[-lines:]) if file.exists() else ""

    def home(self, name: str) -> Path:
        """Return the Flower home of one machine: what it unpacks and how it reaches the SuperLink."""
        home = self.folder / f"{name}.home"
        home.mkdir(exist_ok=True)
        return home

    def environment(self, name: str) -> dict[str, str]:
        """Return the environment of a process: Flower's own programs on the path, a home of its own."""
        return {
            **os.environ,  # with what experiments/__init__.py sets
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "FLWR_HOME": str(self.home(name)),
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        }

    def wait_for_port(self, name: str, port: int, timeout: float = 120) -> None:
        """Return when a process answers on `port` over TLS. Raises `RunStoppedError` if it ends or takes too long."""
        context = ssl.create_default_context(cafile=str(self.certificates.authority))
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            self.refuse_ended()
            with (
                contextlib.suppress(OSError),
                socket.create_connection((HOST, port), timeout=5) as plain,
                context.wrap_socket(plain, server_hostname=HOST),
            ):
                return
            time.sleep(0.1)
        raise RunStoppedError(f"{name} did not listen on port {port} within {timeout:g} seconds.")


def free_port() -> int:
    """Return a port that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
