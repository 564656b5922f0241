"""The server of a deployment as two processes that are kept running: Flower's SuperLink, and an executor of runs.

The SuperLink passes messages and keeps the runs that were submitted; the executor asks it for them and plays each in a fork
of itself (`deployment.run_executor`). Questions for a run are signed with a secret that both are told through a pipe, and
the token of a run stays in the executor's memory: neither stands in a file or in the list of processes. The executor checks the
SuperLink's certificate, so that who takes the port while the SuperLink is down gives it no run.
"""

import ipaddress
import secrets
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from experiments.deployment.certificates import check_host
from experiments.deployment.lifeline import start_module
from experiments.deployment.server_files import (
    check_certificates,
    check_clock,
    check_database,
    check_home,
    check_key,
)
from experiments.deployment.supervisor import Start
from experiments.settings.output import LogForm
from fedmf.errors import RunStoppedError, SettingError
from fedmf.setting import REQUIRED, setting


@dataclass(frozen=True, kw_only=True)
class ServerCommandSettings:
    """Keys of the command."""

    config: str | None = setting(None, "file of these keys in YAML; what is typed comes after it; null: none")
    address: str = setting(
        "127.0.0.1:8000", "HOST:PORT on the loopback interface where the SuperLink listens"
    )
    certificate: str = setting(
        REQUIRED, "file of the server's certificate (server.pem); it must name the host of address, and name"
    )
    key: str = setting(REQUIRED, "file of the certificate's private key; only its owner may read it")
    authority: str = setting(REQUIRED, "file of the authority that signed the certificate (ca.crt)")
    name: str | None = setting(
        None, "what nodes call this server, which the certificate must name too; null: not checked"
    )
    database: str = setting(
        REQUIRED,
        "file of the SuperLink's database, in a folder of this account's own, best on a memory file system",
    )
    home: str | None = setting(None, "FLWR_HOME of both processes; null: as in the environment")
    pause: float = setting(0.5, "seconds between two questions for a run that was submitted, .05 to 10")
    log: LogForm = setting(
        LogForm.text,
        "what the server says on stderr, as lines for people, or each line one JSON object with time, "
        "level, logger, run and message",
    )


def check(settings: ServerCommandSettings) -> None:
    """Raise a `SettingError` for settings with which no server could start, or with which one must not."""
    host, port = parted(settings.address)
    if settings.name is not None:
        check_host("name", settings.name)
    if not 0.05 <= settings.pause <= 10:
        raise SettingError(f"pause is {settings.pause:g} seconds; it must be between 0.05 and 10.")
    certificate, key, authority = map(Path, (settings.certificate, settings.key, settings.authority))
    database = Path(settings.database)
    check_clock({"certificate": certificate, "key": key, "authority": authority, "database": database})
    check_key(key)
    check_certificates(
        certificate, key, authority, [host, *([settings.name] if settings.name is not None else [])]
    )
    check_database(database)
    if settings.home is not None:
        check_home(Path(settings.home))
    if taken := why_taken(host, port):
        raise SettingError(
            f"address is {settings.address}, which cannot be listened on ({taken}); end what listens there, or give "
            "another port."
        )


def parted(address: str) -> tuple[str, int]:
    """Return host and port of an address on the loopback interface. Raises `SettingError` for any other."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        is_local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        host, is_local = "", False
    if not colon or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65536 or not host:
        raise SettingError(
            f"address is {address!r}; it must be HOST:PORT in numbers, such as 127.0.0.1:8000."
        )
    if not is_local:
        raise SettingError(
            f"address is {address}, which other machines may reach, and who reaches the SuperLink can submit runs; it must "
            "be on the loopback interface, such as 127.0.0.1:8000. Nodes come in through a proxy (fedmf proxy)."
        )
    return host, int(port)


def why_taken(host: str, port: int) -> str | None:
    """Return why nothing can listen on a port of this machine, None where something can."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what has ended does not count
        try:
            probe.bind((host, port))
            probe.listen()
        except OSError as error:
            return error.strerror or str(error)
    return None


def starts(settings: ServerCommandSettings) -> dict[str, Start]:
    """Return how to start both processes of a server, by name."""
    secret = secrets.token_hex(32)
    host, port = parted(settings.address)
    environment = {} if settings.home is None else {"FLWR_HOME": str(Path(settings.home).absolute())}

    def superlink() -> subprocess.Popen[bytes]:
        if taken := why_taken(host, port):
            raise RunStoppedError(
                f"address is {settings.address}, which cannot be listened on any more ({taken}): another process of this "
                "machine took it while the SuperLink was down. Find out which, and start again."
            )
        told = {"secret": secret, "arguments": superlink_arguments(settings)}
        return start_module("experiments.deployment.superlink_process", told, environment)

    return {
        "SuperLink": superlink,
        "executor": lambda: start_module(
            "experiments.deployment.run_executor_process",
            {
                "secret": secret,
                "address": settings.address,
                "authority": str(Path(settings.authority).absolute()),
                "pause": settings.pause,
            },
            environment,
        ),
    }


def superlink_arguments(settings: ServerCommandSettings) -> list[str]:
    """Return the arguments of flower-superlink."""
    host, port = parted(settings.address)
    return [
        *("--host", host, "--port", str(port)),
        *("--ssl-certfile", settings.certificate, "--ssl-keyfile", settings.key),
        *("--ssl-ca-certfile", settings.authority),
        *("--enable-supernode-auth", "--database", settings.database),
        "--disable-runtime-dependency-installation",
    ]
