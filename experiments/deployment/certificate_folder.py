"""The folder with a deployment's certificates: an authority and the server's certificate, made once and renewed.

    ca.key       signs; whoever has it can pass for the server. It is needed for renewals alone.
    ca.crt       what nodes trust; after `renew_authority` the old and the new one
    server.key   the server's own
    server.pem   what the server shows, signed by an authority in ca.crt

Keys are for their owner alone (0600), whatever the umask. Nothing is overwritten unasked, and what a renewal replaces is
kept under a name with its date. Every call writes all files aside before one of them takes its name. A crash between two of
those renames leaves a server's key that does not fit its certificate, which `standing` says, and a second renewal mends
it; an authority is renewed by two renames of which each leaves a folder that fits together.
"""

import datetime
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from experiments.deployment.certificates import Signed, names_of, new_authority, new_server
from fedmf.checks import check_at_least
from fedmf.errors import SettingError
from server.files import (
    erase,
    locked_while_changed,
    refuse_others_folder,
    sync_folder,
    temporary_path,
    write_atomically,
)

AUTHORITY_KEY, AUTHORITY, KEY, CERTIFICATE = "ca.key", "ca.crt", "server.key", "server.pem"
ALL = (AUTHORITY_KEY, KEY, CERTIFICATE, AUTHORITY)  # the last one made says that all are there
KEYS = (AUTHORITY_KEY, KEY)
RENEWALS = ("server", "authority")
MOST_DAYS = 36_500
WARN_DAYS = 30  # with fewer days left a renewal is due
_OTHERS_READ = 0o077  # bits of a key's mode


@dataclass(frozen=True)
class Held:
    """What is to be known of one certificate in a folder; times are in UTC."""

    file: str
    title: str
    names: tuple[str, ...]
    signed_by: str
    begins: datetime.datetime
    ends: datetime.datetime

    def days_left(self, now: datetime.datetime) -> int:
        """Return how many whole days it is still valid at `now`, below 0 when it has expired."""
        return (self.ends - now) // datetime.timedelta(days=1)


@dataclass(frozen=True)
class Standing:
    """All certificates of a folder, and what is wrong with them or soon will be, in sentences."""

    held: tuple[Held, ...]
    warnings: tuple[str, ...]


def make(folder: Path, names: Sequence[str], *, days: int, authority_days: int) -> None:
    """Make an authority and a server's certificate in a folder, which is made too where it is not there (0700).

    Raises `SettingError` where one of the files is there already.
    """
    _check_days("days", days)
    _check_days("authority_days", authority_days)
    if days > authority_days:
        raise SettingError(
            f"days is {days} and authority_days is {authority_days}; a certificate must not outlive its authority."
        )
    authority = new_authority(authority_days)
    server = new_server(authority, names, days)  # a mistake in a name is said before anything is made
    if not folder.exists():
        refuse_others_folder("directory", folder)
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)  # whatever the umask
    with _changing(folder):
        if there := [name for name in ALL if (folder / name).exists()]:
            raise SettingError(
                f"directory is {folder}, which holds {' and '.join(there)}; {_what_to_do(there)}"
            )
        contents = {
            AUTHORITY_KEY: authority.key_pem,
            KEY: server.key_pem,
            CERTIFICATE: server.certificate_pem,
            AUTHORITY: authority.certificate_pem,
        }
        _place(folder, contents)


def renew_server(folder: Path, names: Sequence[str], *, days: int) -> tuple[str, ...]:
    """Make a new key and certificate for the server under the authority whose key is here; return what was kept as what.

    Without `names` they are those of the certificate that is replaced. Raises `SettingError` where the authority's key is
    missing or not its key, and where the authority would expire before the certificate.
    """
    _check_days("days", days)
    with _changing(folder):
        authority = _authority(folder)
        old = _certificates(folder / CERTIFICATE) if (folder / CERTIFICATE).exists() else []
        names = names or (names_of(old[0]) if old else ())
        if not names:
            raise SettingError(
                f"name is missing: {folder} holds no {CERTIFICATE} whose names could be taken over."
            )
        left = (authority.certificate.not_valid_after_utc - _now()) // datetime.timedelta(days=1)
        if days > left:
            raise SettingError(
                f"days is {days}, and the authority in {folder / AUTHORITY} is valid for {max(left, 0)} more; renew=authority "
                "makes another one, or give fewer days."
            )
        server = new_server(authority, names, days)
        kept = _keep(folder, (KEY, CERTIFICATE))
        _place(folder, {KEY: server.key_pem, CERTIFICATE: server.certificate_pem})
    return kept


def renew_authority(folder: Path, *, authority_days: int) -> tuple[str, ...]:
    """Make a new authority, and ca.crt a bundle of it and the old ones that have not expired; return what was kept as what.

    The server's certificate stays that of the old authority until the next `renew_server`, before which every node must
    have the bundle.
    """
    _check_days("authority_days", authority_days)
    with _changing(folder):
        old = [entry for entry in _certificates(folder / AUTHORITY) if entry.not_valid_after_utc > _now()]
        authority = new_authority(authority_days)
        bundle = authority.certificate_pem + b"".join(entry.public_bytes(Encoding.PEM) for entry in old)
        kept = _keep(folder, (AUTHORITY_KEY, AUTHORITY))
        # The bundle first: it holds the authority of either key.
        _place(folder, {AUTHORITY: bundle, AUTHORITY_KEY: authority.key_pem})
    return kept


def standing(folder: Path) -> Standing:
    """Return what certificates a folder holds, of which a server host has no ca.key, and what is wrong with them.

    Raises `SettingError` where there is none, and for a file that is none.
    """
    now = _now()
    authorities, servers = (
        _certificates(folder / name) if (folder / name).exists() else [] for name in (AUTHORITY, CERTIFICATE)
    )
    if not authorities and not servers:
        raise SettingError(
            f"directory is {folder}, which holds no {AUTHORITY} and no {CERTIFICATE}; name=HOST makes them, with HOST as the "
            "nodes call the server."
        )
    held = tuple(
        _held(file, entry)
        for file, entries in ((AUTHORITY, authorities), (CERTIFICATE, servers[:1]))
        for entry in entries
    )
    return Standing(held, tuple(_warnings(folder, held, authorities, servers, now)))


def _warnings(
    folder: Path,
    held: Sequence[Held],
    authorities: Sequence[x509.Certificate],
    servers: Sequence[x509.Certificate],
    now: datetime.datetime,
) -> Iterator[str]:
    """Yield what is wrong in a folder, or soon will be."""
    lasting = max(
        (entry for entry in held if entry.file == AUTHORITY), key=lambda entry: entry.ends, default=None
    )
    for entry in held:
        if entry is lasting or entry.file == CERTIFICATE:  # the older ones of a bundle may expire
            yield from _soon(entry, now)
    if servers and authorities and not any(_is_signed_by(servers[0], entry) for entry in authorities):
        yield f"{CERTIFICATE} is not signed by an authority in {AUTHORITY}: no node would talk to the server. renew=server makes one that is."
    for name, certificates in ((KEY, servers[:1]), (AUTHORITY_KEY, authorities)):
        file = folder / name
        if not file.exists() or not certificates:
            continue
        if file.stat().st_mode & _OTHERS_READ:
            yield f"{name} can be read by others than its owner; run chmod 600 {file}."
        try:
            key = _private_key(file)
        except PermissionError:
            yield f"{name} cannot be read by this account, so that it was not compared with its certificate."
            continue
        if not any(entry.public_key() == key.public_key() for entry in certificates):
            partner = CERTIFICATE if name == KEY else AUTHORITY
            mend = "renew=server makes both anew" if name == KEY else "nothing can be renewed with it"
            yield f"{name} is not the key of {partner}, as after a renewal that was interrupted or a file that was exchanged; {mend}."


def _soon(entry: Held, now: datetime.datetime) -> Iterator[str]:
    left, which = entry.days_left(now), "server" if entry.file == CERTIFICATE else "authority"
    if entry.ends <= now:
        yield f"{entry.title} in {entry.file} expired on {entry.ends:%Y-%m-%d}; renew={which}."
    elif left < WARN_DAYS:
        yield f"{entry.title} in {entry.file} expires in {left} days, on {entry.ends:%Y-%m-%d}; renew={which}."
    if entry.begins > now:
        yield f"{entry.title} in {entry.file} is valid from {entry.begins:%Y-%m-%d %H:%M} UTC on, which is still to come; is this machine's clock right?"


def _what_to_do(there: Sequence[str]) -> str:
    if AUTHORITY in there:
        return (
            "nothing was overwritten. renew=server makes a new certificate, renew=authority a new authority."
        )
    return (
        f"and no {AUTHORITY}. If nodes were ever given one, put it back beside its key. If none was, as after a call that was "
        "interrupted, remove these files and call again."
    )


@contextmanager
def _changing(folder: Path) -> Iterator[None]:
    """Let one process at a time change a folder that no other account can change; raises `SettingError` for others."""
    if not folder.is_dir():
        raise SettingError(
            f"directory is {folder}, which is no folder; name=HOST makes it with new certificates."
        )
    refuse_others_folder("directory", folder / AUTHORITY)
    with locked_while_changed(folder / "certificates"):
        yield


def _authority(folder: Path) -> Signed:
    """Return the authority whose key is in the folder."""
    certificates, file = _certificates(folder / AUTHORITY), folder / AUTHORITY_KEY
    if not file.exists():
        raise SettingError(f"{file} is missing: a certificate is renewed where the authority's key is kept.")
    key = _private_key(file)
    for certificate in certificates:
        if certificate.public_key() == key.public_key():
            return Signed(certificate, key)
    raise SettingError(
        f"{file} is not the key of an authority in {folder / AUTHORITY}; restore the one that is."
    )


def _certificates(file: Path) -> list[x509.Certificate]:
    """Return the certificates in a file, one at least. Raises `SettingError` for anything else."""
    try:
        return x509.load_pem_x509_certificates(file.read_bytes())
    except FileNotFoundError as error:
        raise SettingError(f"{file} is missing; name=HOST makes it with new certificates.") from error
    except (OSError, ValueError) as error:
        raise SettingError(
            f"{file} cannot be read as a certificate in PEM format ({error}); restore it."
        ) from error


def _private_key(file: Path) -> ec.EllipticCurvePrivateKey:
    """Return the key in a file. Raises `SettingError` for what is none, `PermissionError` for one that may not be read."""
    try:
        key = load_pem_private_key(file.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SettingError(
            f"{file} holds no private key in PEM format without a passphrase; restore it."
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise SettingError(f"{file} holds a key of another kind; it must be one on an elliptic curve.")
    return key


def _held(file: str, entry: x509.Certificate) -> Held:
    return Held(
        file,
        _title(entry.subject),
        names_of(entry),
        _title(entry.issuer),
        entry.not_valid_before_utc,
        entry.not_valid_after_utc,
    )


def _title(name: x509.Name) -> str:
    """Return the common name, or the whole name of one that has none."""
    common = name.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return str(common[0].value) if common else name.rfc4514_string()


def _is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):  # another issuer, another kind of key
        return False
    return True


def _keep(folder: Path, names: Sequence[str]) -> tuple[str, ...]:
    """Copy files to names with the present time that nothing has yet, and return these; files that are not there are left out."""
    there = [name for name in names if (folder / name).exists()]
    for number in itertools.count():
        stamp = f"{_now():%Y-%m-%dT%H%M%SZ}" + (f"-{number}" if number else "")
        copies = {name: f"{Path(name).stem}.until-{stamp}{Path(name).suffix}" for name in there}
        if not any((folder / kept).exists() for kept in copies.values()):
            break
    _place(folder, {kept: (folder / name).read_bytes() for name, kept in copies.items()})
    return tuple(copies.values())


def _place(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write all files aside, keys for their owner alone, and then give them their names in this order."""
    asides = {name: temporary_path(folder / name) for name in contents}
    try:
        for name, content in contents.items():
            write_atomically(asides[name], content, mode=0o600)
            asides[name].chmod(0o600 if name.endswith(".key") else 0o644)  # whatever the umask
        for name, aside in asides.items():
            aside.replace(folder / name)
        sync_folder(folder)
    finally:
        for aside in asides.values():
            erase(aside)


def _check_days(key: str, days: int) -> None:
    check_at_least(key, days, 1)
    if days > MOST_DAYS:
        raise SettingError(f"{key} is {days}; it must be at most {MOST_DAYS}, a hundred years.")


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
