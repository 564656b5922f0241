"""A whole deployment on one machine: SuperLink, SuperNodes and operator, on the loopback interface only.

The commands are those of docs/deployment.md; here a program types them. Used by `experiments.deploy_demo` and by
the integration tests. Everything that is secret (keys, certificates, the SuperLink's database) is in one folder
that is removed at the end. Where this process is killed, the others end by themselves; the folder is then left.
"""

import base64
import contextlib
import json
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
from typing import IO

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from client.imports import need
from experiments.deployment.warm import UNTIL_EOF
from experiments.run_files.directory import open_no_link
from experiments.settings.reference import CONF
from fedmf.errors import RunStoppedError
from server.files import write_atomically

HOST = "127.0.0.1"
APP = CONF.parent  # what `flwr run` bundles
BIN = Path(sys.executable).parent
WARM = (sys.executable, "-m", "experiments.deployment.warm", UNTIL_EOF)
_GRACE = 20.0  # seconds for a process to end by itself


class Loopback(contextlib.AbstractContextManager["Loopback"]):
    """The processes of one deployment: a context, at whose end all are stopped and the folder is removed."""

    def __init__(self) -> None:
        memory = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(prefix="fedmf-", dir=memory if memory.is_dir() else None))
        self.authority, self.certificate = self.folder / "ca.crt", self.folder / "server.pem"
        authority = need("trustme", "a deployment on one machine", "dev").CA()
        authority.cert_pem.write_to_path(self.authority)
        authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(self.certificate)
        # For population.nodes, in JSON, which is YAML: all that were registered.
        self.nodes = self.folder / "nodes.yaml"
        self._listed: list[dict[str, str | int]] = []
        self._box_key = make_box_key(self.folder / "server.box")
        self.port = free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __exit__(self, *error: object) -> None:
        """End every process and remove the folder; other interrupts wait until that is done."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
        try:
            for name in reversed(list(self._processes)):
                self.stop(name)
            shutil.rmtree(self.folder, ignore_errors=True)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def start_superlink(self, *, warm: bool = True) -> None:
        """Start the SuperLink and return when it listens; started again, it continues with its database."""
        command: list[str | Path] = [
            *(WARM if warm else ()),
            *(BIN / "flower-superlink", "--host", HOST, "--port", str(self.port)),
            *("--ssl-certfile", self.certificate, "--ssl-keyfile", self.certificate),
            *("--ssl-ca-certfile", self.authority),
            *("--enable-supernode-auth", "--database", self.folder / "superlink.db"),
            "--disable-runtime-dependency-installation",
        ]
        self.start("superlink", command)
        self.wait_for_port("superlink", self.port)
        operator = Path(self.environment("operator")["FLWR_HOME"])
        connection = (
            f'[superlink.loopback]\naddress = "{HOST}:{self.port}"\nroot-certificates = "{self.authority}"\n'
        )
        write_atomically(operator / "config.toml", connection.encode())

    def register(self, node: str, most_clients: int = 10_000) -> None:
        """Make the keys of `node`, tell the SuperLink the public half of one, and put the node into the list."""
        public = make_node_key(self.folder, node)
        self.call("flwr", "supernode", "register", public, "loopback")
        self._listed.append(
            {
                "name": node,
                "public_key": public.read_text().strip(),
                "box_key": make_box_key(self.folder / f"{node}.box"),
                "most_clients": most_clients,
            }
        )
        listed = {"server_box_key": str(self.folder / "server.box"), "nodes": self._listed}
        write_atomically(self.nodes, json.dumps(listed).encode(), mode=0o600)

    def start_supernode(
        self,
        node: str,
        overrides: str,
        *arguments: str | Path,
        warm: bool = True,
        command: Sequence[str | Path] = (),
        port: int | None = None,
    ) -> None:
        """Start a registered node, or one that was stopped; `overrides` say whose data it holds.

        `command` replaces flower-supernode and the warm start before it; `arguments` follow. `port` is another way to the
        SuperLink than its own, through a proxy.
        """
        config = {
            "overrides": overrides,
            "box_key": self.folder / f"{node}.box",
            "server_box_key": self._box_key,
        }
        self.start(
            node,
            [
                *(command or (*(WARM if warm else ()), BIN / "flower-supernode")),
                *("--superlink", f"{HOST}:{port or self.port}", "--host", HOST, "--port", str(free_port())),
                *("--root-certificates", self.authority),
                *("--auth-supernode-private-key", self.folder / node),
                *("--node-config", " ".join(f'{key}="{value}"' for key, value in config.items())),
                *arguments,
            ],
        )

    def submit(self, overrides: str, output: IO[str] | None = None) -> subprocess.Popen[bytes]:
        """Start `flwr run`, which prints the server's log until the run ends: to `output`, or into the log "run".

        The run has the list of the nodes that were registered, unless the overrides name another.
        """
        overrides = f"population.nodes={self.nodes} {overrides}"  # of two values of a key the last one counts
        command = (BIN / "flwr", "run", APP, "loopback", "--stream", "-c", f'overrides="{overrides}"')
        return self.start("run", command, home="operator", output=output)

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
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        home: str | None = None,
        output: IO[str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a process in a group and with a Flower home of its own; its standard input ends with this process."""
        if name in self._processes:  # an earlier one of the name, which has ended
            self.kill(name)
        with open(self.log(name), "ab", opener=open_no_link) as log:
            self._processes[name] = subprocess.Popen(
                [str(part) for part in command],
                env=self.environment(home or name),
                stdin=subprocess.PIPE,
                stdout=output or log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=0o077,
            )
        return self._processes[name]

    def stop(self, name: str) -> None:
        """Ask a process to end, and after a while end it with everything that it started."""
        process = self._processes[name]
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
        self.kill(name)

    def kill(self, name: str) -> None:
        """End a process and everything that it started at once, as a power cut would."""
        with self._processes.pop(name) as process, contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def check_running(self) -> None:
        """Raise `RunStoppedError` with the end of its log if SuperLink or a SuperNode ended by itself."""
        for name, process in self._processes.items():
            if name != "run" and process.poll() is not None:
                raise RunStoppedError(f"{name} ended with {process.returncode}:\n{self.tail(name)}")

    def log(self, name: str) -> Path:
        """Return the file that holds what a process printed."""
        return self.folder / f"{name}.log"

    def tail(self, name: str) -> str:
        """Return the last lines of a process's log."""
        file = self.log(name)
        return "\n".join(file.read_text(errors="replace").splitlines()[-30:]) if file.exists() else ""

    def environment(self, name: str) -> dict[str, str]:
        """Return the environment of a process: Flower's own programs on the path, a Flower home of its own."""
        home = self.folder / f"{name}.home"
        home.mkdir(exist_ok=True)
        path = f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"
        return {**os.environ, "PATH": path, "FLWR_HOME": str(home)}  # with what experiments/__init__.py sets

    def wait_for_port(self, name: str, port: int, timeout: float = 120) -> None:
        """Return when a process answers on `port` over TLS. Raises `RunStoppedError` if it ends or takes too long."""
        context = ssl.create_default_context(cafile=str(self.authority))
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            self.check_running()
            with (
                contextlib.suppress(OSError),
                socket.create_connection((HOST, port), timeout=5) as plain,
                context.wrap_socket(plain, server_hostname=HOST),
            ):
                return
            time.sleep(0.1)
        raise RunStoppedError(f"{name} did not listen on port {port} within {timeout:g} seconds.")


def make_node_key(folder: Path, node: str) -> Path:
    """Write a new key pair as `ssh-keygen -t ecdsa -b 384` does, and return the file of its public half."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_atomically(
        folder / node, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), mode=0o600
    )
    public = folder / f"{node}.pub"
    write_atomically(public, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
    return public


def make_box_key(file: Path) -> str:
    """Write a new private box key as `openssl genpkey -algorithm x25519` does, and return its public half in base64."""
    key = X25519PrivateKey.generate()
    write_atomically(file, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), mode=0o600)
    return base64.b64encode(key.public_key().public_bytes_raw()).decode()


def free_port() -> int:
    """Return a port that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
