"""Make, show and renew the certificates of a deployment: `python -m experiments.certificates directory=DIR name=HOST`.

Makes an authority (ca.key, ca.crt) and the server's key and certificate (server.key, server.pem) for HOST, `names`, localhost
and 127.0.0.1. ca.crt goes to every node, server.key and server.pem to the server, ca.key nowhere. With `directory` alone it
shows what is there and until when it is valid, and says when less than 30 days are left.

Nothing is overwritten unasked, and what a renewal replaces is kept under a name with the date:
    renew=server     a new key and certificate for the server, for the same names unless `name` is given
    renew=authority  a new authority; ca.crt then holds the old one too. Give it to every node, and restart them, before the
                     next renew=server: from that on the server shows a certificate of the new authority
"""

import datetime
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from experiments.cli import command, output
from experiments.deployment.certificate_folder import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    RENEWALS,
    Standing,
    make,
    renew_authority,
    renew_server,
    standing,
)
from experiments.settings.log import messages
from experiments.settings.output import PRINTED, Output
from fedmf.checks import check_choice
from fedmf.errors import SettingError
from fedmf.setting import REQUIRED, setting


@dataclass(frozen=True)
class CertificatesSettings:
    """Keys of the command."""

    directory: str = setting(
        REQUIRED,
        "folder of ca.key, ca.crt, server.key and server.pem; made where it is not there, for its owner alone",
    )
    name: str | None = setting(
        None,
        "host name or address by which nodes call the server; null: nothing is made, or what is "
        "renewed keeps its names",
    )
    names: tuple[str, ...] = setting(
        (), "further host names and addresses of the server; localhost and 127.0.0.1 are always among them"
    )
    days: int = setting(365, "for how many days the server's certificate is valid")
    authority_days: int = setting(3650, "for how many days the authority is valid")
    renew: str | None = setting(
        None,
        "what is made anew, while the old one is kept under a name with the date; null: nothing",
        RENEWALS,
    )
    output: Output = setting(Output.text, PRINTED)

    def __post_init__(self) -> None:
        if self.renew is not None:
            check_choice("renew", self.renew, RENEWALS)
        if self.names and self.name is None:
            raise SettingError(
                f"names is {', '.join(self.names)} and name is null; name is what nodes call the server, names are others beside it."
            )
        if self.renew == "authority" and self.name is not None:
            raise SettingError(f"name is {self.name}, and an authority has none; give it with renew=server.")


def certificates(settings: CertificatesSettings) -> None:
    """Make or renew certificates as asked, and show what the folder holds."""
    folder = Path(settings.directory)
    names = (settings.name, *settings.names) if settings.name is not None else ()
    kept: tuple[str, ...] = ()
    if settings.renew == "server":
        kept = renew_server(folder, names, days=settings.days)
    elif settings.renew == "authority":
        kept = renew_authority(folder, authority_days=settings.authority_days)
    elif names:
        make(folder, names, days=settings.days, authority_days=settings.authority_days)
    show(standing(folder), folder, kept, next_step(settings), settings.output)


def next_step(settings: CertificatesSettings) -> str | None:
    """Return what is to be done with what was made, None where nothing was."""
    if settings.renew == "authority":
        return (
            f"Give {AUTHORITY} to every node, the server and the proxy and restart them; when all have it, renew=server. Until "
            "then the server shows the certificate of the old authority."
        )
    if settings.renew == "server":
        return f"Give {KEY} and {CERTIFICATE} to the server and the proxy and restart them; nodes need nothing. Then remove the old ones."
    if settings.name is not None:
        return f"Give {AUTHORITY} to every node; {KEY}, {CERTIFICATE} and {AUTHORITY} to the server. The authority's key, ca.key, stays here."
    return None


def show(found: Standing, folder: Path, kept: tuple[str, ...], following: str | None, form: Output) -> None:
    """Print what a folder holds; warnings and what to do next go to stderr, or into the JSON document."""
    now = datetime.datetime.now(datetime.UTC)
    rows = [
        {
            "file": entry.file,
            "holder": entry.title,
            "names": list(entry.names),
            "signed_by": entry.signed_by,
            "valid_from": entry.begins.isoformat(),
            "valid_until": entry.ends.isoformat(),
            "days_left": entry.days_left(now),
        }
        for entry in found.held
    ]
    if form is Output.json:
        document = {"directory": str(folder), "certificates": rows, "warnings": list(found.warnings)}
        output.print_json({**document, "kept": list(kept), "next": following})
        return
    table = Table(title=f"Certificates in {folder}")
    for column in ("file", "of", "names", "signed by", "valid until (UTC)", "days left"):
        table.add_column(column)
    for entry in found.held:
        until, left = f"{entry.ends:%Y-%m-%d %H:%M}", f"{entry.days_left(now)}"
        table.add_row(entry.file, entry.title, ", ".join(entry.names), entry.signed_by, until, left)
    output.console().print(table)
    for line in (*(f"kept the old one: {folder / name}" for name in kept), following):
        if line is not None:
            messages.info(line)
    for warning in found.warnings:
        messages.warning(warning)


if __name__ == "__main__":
    command.run(certificates, "certificates", CertificatesSettings, __doc__)
