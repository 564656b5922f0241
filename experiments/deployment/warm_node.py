"""A node of a deployment as two processes that are kept running: Flower's SuperNode, and an executor of ours beside it.

The SuperNode talks to the SuperLink and offers what it gets on a port of the loopback interface; the executor fetches
its tasks there. Who else reaches that port can take no task: questions for one are signed with a secret that both are
told through a pipe, and the token of a task stays in the executor's memory. So neither stands in a file or in the list
of processes.

Nothing tells the executor that it is the SuperNode who answers: another account of the machine that takes the port while the
SuperNode is down can hand it tasks of its own. A node's host therefore has no other accounts (docs/deployment.md).
"""

import secrets
import shlex
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from experiments.deployment.certificates import check_host
from experiments.deployment.lifeline import start_module
from experiments.deployment.loopback import HOST, free_port
from experiments.deployment.reaching import OTHER_SESSION, SESSION, Way
from experiments.deployment.supervisor import Start
from experiments.settings.data import DatasetSettings, ModelSettings
from experiments.settings.operator_file import without
from experiments.settings.output import LogForm
from fedmf.checks import check_at_least
from fedmf.errors import RunStoppedError, SettingError
from fedmf.setting import REQUIRED, setting

OWN_KEYS = (
    "config",
    "superlink",
    "root_certificates",
    "private_key",
    "trusted_entities",
    "port",
    "pause",
    "log",
)
MEANINGS = {SESSION: OTHER_SESSION}  # of exit codes of a node's processes
_OTHERS = 0o077  # bits of a file's mode


@dataclass(frozen=True, kw_only=True)
class NodeCommandSettings:
    """Keys of the command."""

    dataset: DatasetSettings = setting(REQUIRED, "data of which this node has some clients", chosen="digits")
    model: ModelSettings = setting(
        REQUIRED,
        "what texts are parted for; model.start=FILE is this node's own copy of the file that a run names as its model.start",
        chosen="logistic",
    )
    config: str | None = setting(None, "file of these keys in YAML; what is typed comes after it; null: none")
    clients: int = setting(
        REQUIRED, "how many clients this node declares; public, whatever the state of its data"
    )
    first: int = setting(
        0, "the first of the data set's clients that is this node's: it holds first .. first + clients - 1"
    )
    superlink: str = setting(REQUIRED, "HOST:PORT of the SuperLink, or of the proxy before it")
    root_certificates: str = setting(
        REQUIRED, "file of the authority that signed the server's certificate (ca.crt)"
    )
    private_key: str = setting(
        REQUIRED, "file of this node's private key, made by ssh-keygen -t ecdsa; only its owner may read it"
    )
    trusted_entities: str | None = setting(
        None, "file of Flower's --trusted-entities: signed apps alone are run; null: also unsigned ones"
    )
    port: int | None = setting(
        None, "port on the loopback interface between the node's own two processes; null: one that is free"
    )
    pause: float = setting(
        0.2,
        "seconds between two questions for a message while there is work, .01 to 3; a minute after "
        "the last one it asks every 3",
    )
    log: LogForm = setting(
        LogForm.text,
        "what the node says on stderr, as lines for people, or each line one JSON object with time, "
        "level, logger, run and message",
    )


def check(settings: NodeCommandSettings) -> None:
    """Raise a `FedmfError` for settings with which no node could start."""
    check_at_least("clients", settings.clients, 1)
    check_at_least("first", settings.first, 0)
    if not 0.01 <= settings.pause <= 3:
        raise SettingError(f"pause is {settings.pause:g} seconds; it must be between 0.01 and 3.")
    check_superlink(settings.superlink)
    if settings.port is not None and not 0 < settings.port < 65536:
        raise SettingError(f"port is {settings.port}; it must be between 1 and 65535, or null.")
    check_certificates(Path(settings.root_certificates))
    check_private_key(Path(settings.private_key))
    if settings.trusted_entities is not None and not Path(settings.trusted_entities).is_file():
        raise SettingError(f"trusted_entities is {settings.trusted_entities}, which is no file.")


def check_superlink(superlink: str) -> None:
    """Raise `SettingError` for what is no host name or address and port.

    >>> check_superlink("fedmf.example.org:8443"), check_superlink("[::1]:8443")
    (None, None)
    """
    host, colon, port = superlink.rpartition(":")
    is_port = port.isascii() and port.isdecimal() and 0 < int(port) < 65536
    is_bare = (
        host.startswith("[") == host.endswith("]") == (":" in host)
    )  # an address of IPv6 stands in brackets
    if not host or not colon or not is_port or not is_bare or "/" in host:
        raise SettingError(
            f"superlink is {superlink!r}; it must be HOST:PORT, such as fedmf.example.org:8443, without https://."
        )
    check_host("superlink's host", host.removeprefix("[").removesuffix("]"))


def check_certificates(file: Path) -> None:
    """Raise `SettingError` for a file that holds no certificate."""
    content = _content("root_certificates", file)
    try:
        x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise SettingError(
            f"root_certificates is {file}, which holds no certificate in PEM format; it must be the authority's ca.crt."
        ) from error


def check_private_key(file: Path) -> None:
    """Raise `SettingError` for a file that is no private key of a node, or that another account of this machine can read."""
    content = _content("private_key", file)
    try:
        key = load_ssh_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SettingError(
            f"private_key is {file}, which holds no private key in OpenSSH's format without a passphrase; make one with "
            'ssh-keygen -t ecdsa -b 384 -N "".'
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise SettingError(
            f"private_key is {file}, a key of another kind; it must be one of ssh-keygen -t ecdsa."
        )
    if file.stat().st_mode & _OTHERS:
        raise SettingError(
            f"private_key is {file}, which other accounts of this machine can read; run chmod 600 {file}."
        )


def data_overrides(arguments: Sequence[str]) -> str:
    """Return what the arguments of the command say about data, as one text: those of node_check.

    >>> data_overrides(["superlink=a:1", "clients=3", "dataset.path=/my data.npz"])
    "clients=3 'dataset.path=/my data.npz'"
    """
    return shlex.join(without(OWN_KEYS, arguments))


def starts(settings: NodeCommandSettings, overrides: str) -> dict[str, Start]:
    """Return how to start both processes of a node, by name."""
    secret = secrets.token_hex(32)
    port = settings.port or free_port()
    shared: Mapping[str, Any] = {"secret": secret, "pause": settings.pause}

    def supernode() -> subprocess.Popen[bytes]:
        refuse_taken(port, is_given=settings.port is not None)
        way = Way(settings.superlink, settings.root_certificates, settings.private_key)
        arguments = supernode_arguments(settings, overrides, port)
        told = {**shared, "arguments": arguments, "way": asdict(way)}
        return start_module("experiments.deployment.supernode_process", told)

    return {
        "SuperNode": supernode,
        "executor": lambda: start_module(
            "experiments.deployment.executor_process",
            {**shared, "address": f"{HOST}:{port}", "overrides": overrides},
        ),
    }


def refuse_taken(port: int, *, is_given: bool) -> None:
    """Raise `RunStoppedError` where another process listens on `port`; `is_given`: as port=, else it was a free one."""
    with socket.socket() as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # as the SuperNode: what ended does not count
        try:
            probe.bind((HOST, port))
        except OSError as error:
            advice = (
                "give another one, or port=null, which takes one that is free"
                if is_given
                else "it was free when the node started, and was taken since: start the node again, which takes another"
            )
            raise RunStoppedError(
                f"port {port} of the loopback interface cannot be used ({error.strerror}); {advice}."
            ) from error


def supernode_arguments(settings: NodeCommandSettings, overrides: str, port: int) -> list[str]:
    """Return the arguments of flower-supernode."""
    trusted = settings.trusted_entities
    return [
        *("--superlink", settings.superlink, "--host", HOST, "--port", str(port)),
        *("--root-certificates", settings.root_certificates),
        *("--auth-supernode-private-key", settings.private_key),
        *("--node-config", f'overrides="{_escaped(overrides)}"'),
        *(("--trusted-entities", trusted) if trusted is not None else ()),
    ]


def _escaped(text: str) -> str:
    """Return `text` as it stands between the quotes of a TOML string in which Flower looks for the next quote."""
    return text.replace("\\", "\\u005c").replace('"', "\\u0022").replace("\n", "\\u000a")


def _content(key: str, file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SettingError(f"{key} is {file}, which cannot be read: {error.strerror}.") from error
