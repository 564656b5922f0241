"""Whether the files of a server are such that one may start with them: certificate, key, authority, database, home."""

import datetime
import logging
import os
import ssl
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from experiments.deployment.leftovers import find_leftovers, users_of
from fedmf.errors import SettingError

log = logging.getLogger(__name__)

SOON = 30  # days before its end at which a certificate is spoken of
_AHEAD = 300.0  # seconds: files that are younger than now by more were written when another time was shown
_OTHERS, _OTHERS_WRITE = 0o077, 0o022  # bits of a file's mode
_EXPIRED, _NOT_YET, _OTHER_NAMES = 10, 9, (62, 64)  # OpenSSL's X509_V_ERR_... of a certificate

EXAMPLE = "fedmf certificates makes one."


def check_key(file: Path) -> None:
    """Raise `SettingError` for a key that cannot be read, or that another account of this machine may read."""
    _content("key", file)
    if file.stat().st_mode & _OTHERS:
        raise SettingError(
            f"key is {file}, which other accounts of this machine can read; run chmod 600 {file}."
        )


def check_certificates(certificate: Path, key: Path, authority: Path, names: Sequence[str]) -> None:
    """Raise `SettingError` unless who trusts `authority` would take the certificate for a server of each of `names`.

    A handshake in memory decides, with the checks that a node and the executor make.
    """
    for setting, file in (("certificate", certificate), ("authority", authority)):
        _content(setting, file)
    served = _certificates("certificate", certificate)[0]
    trusted = _certificates("authority", authority)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except ssl.SSLError as error:
        raise SettingError(_of_key(error, certificate, key)) from error
    for name in names:
        _shake_hands(context, served, certificate, authority, name)
    signers = [
        one for one in trusted if _has_signed(one, served)
    ] or trusted  # a file of an old and a new authority
    for setting, file, ends in (
        ("certificate", certificate, served.not_valid_after_utc),
        ("authority", authority, max(one.not_valid_after_utc for one in signers)),
    ):
        left = (ends - datetime.datetime.now(datetime.UTC)).days
        if left < SOON:
            log.warning(
                "%s is %s, which expires in %d days (%s); renew it before", setting, file, left, _day(ends)
            )


def check_database(file: Path) -> None:
    """Raise `SettingError` unless a SuperLink may keep `file`: it holds mask keys and un-noised updates."""
    if not file.is_absolute():
        raise SettingError(f"database is {str(file)!r}; it must be an absolute path.")
    _check_folder("database", file, file.parent)
    leftovers = find_leftovers(file, None)  # refuses what is no SuperLink's database
    if file.exists():
        state = file.stat()
        if state.st_uid != os.geteuid() or state.st_mode & _OTHERS:
            raise SettingError(
                f"database is {file}, which another account owns or can read; it must be this account's alone (0600)."
            )
    if users := users_of(leftovers):
        raise SettingError(
            f"database is {file}, which process {', '.join(map(str, users))} uses; two SuperLinks cannot share one."
        )


def check_home(folder: Path) -> None:
    """Raise `SettingError` unless Flower may write in `folder`, and no other account."""
    if not folder.is_absolute():
        raise SettingError(f"home is {str(folder)!r}; it must be an absolute path.")
    if folder.exists() or folder.is_symlink():
        _check_folder("home", folder, folder)
    else:
        _check_folder("home", folder, folder.parent)


def check_clock(files: Mapping[str, Path], now: float | None = None) -> None:
    """Raise `SettingError` where this machine's clock shows a time before its own files were written."""
    shown = time.time() if now is None else now
    for setting, file in files.items():
        try:
            written = file.stat().st_mtime
        except OSError:
            continue  # who needs it says so
        if written > shown + _AHEAD:
            raise SettingError(
                f"this machine's clock shows {_moment(shown)}, and {setting}, {file}, was written at {_moment(written)}; set "
                "the clock, because nodes whose clock differs by seconds are refused (or touch the file, if its time is wrong)."
            )


def _shake_hands(
    server: ssl.SSLContext, served: x509.Certificate, certificate: Path, authority: Path, name: str
) -> None:
    """Raise `SettingError` unless a client that trusts `authority` ends a handshake with the server as `name`."""
    trusting = ssl.create_default_context(cafile=str(authority))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    serving = server.wrap_bio(to_server, to_client, server_side=True)
    asking = trusting.wrap_bio(to_client, to_server, server_hostname=name)
    for _ in range(10):
        try:
            asking.do_handshake()
            return
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLCertVerificationError as error:
            raise SettingError(_of_certificate(error, served, certificate, authority, name)) from error
        try:
            serving.do_handshake()
        except ssl.SSLWantReadError:
            continue
    raise SettingError(f"certificate is {certificate}, with which no connection comes about; {EXAMPLE}")


def _of_certificate(
    error: ssl.SSLCertVerificationError,
    served: x509.Certificate,
    certificate: Path,
    authority: Path,
    name: str,
) -> str:
    """Return what is wrong with a certificate, as a sentence."""
    now = datetime.datetime.now(datetime.UTC)
    if error.verify_code == _EXPIRED:
        if served.not_valid_after_utc < now:
            return f"certificate is {certificate}, which expired on {_day(served.not_valid_after_utc)}; renew it. {EXAMPLE}"
        return f"authority is {authority}, which has expired; make a new one, and give it to every node. {EXAMPLE}"
    if error.verify_code == _NOT_YET:
        begins = max(served.not_valid_before_utc, *(one.not_valid_before_utc for one in _read(authority)))
        return (
            f"certificate is {certificate}, which is valid from {_day(begins)} on, and this machine's clock shows "
            f"{_moment(time.time())}; set the clock if it is wrong."
        )
    if error.verify_code in _OTHER_NAMES:
        return (
            f"certificate is {certificate}, which is for {', '.join(_names(served)) or 'no name'} and not for {name}; the "
            f"SuperLink needs one that names the host of address, and name. {EXAMPLE}"
        )
    return (
        f"certificate is {certificate}, which was not signed by authority, {authority} ({error.verify_message}); give the "
        "certificate of the authority that signed it."
    )


def _of_key(error: ssl.SSLError, certificate: Path, key: Path) -> str:
    """Return why a certificate and a key cannot be used together, as a sentence."""
    if "MISMATCH" in (error.reason or ""):
        return f"key is {key}, which does not fit certificate, {certificate}; it must be the key that was made for it."
    return (
        f"key is {key}, which holds no private key in PEM format without a passphrase, or none for certificate, {certificate}; "
        f"{EXAMPLE}"
    )


def _no_password() -> bytes:
    return b""  # OpenSSL would ask on the terminal


def _certificates(setting: str, file: Path) -> list[x509.Certificate]:
    try:
        return _read(file)
    except ValueError as error:
        raise SettingError(
            f"{setting} is {file}, which holds no certificate in PEM format; {EXAMPLE}"
        ) from error


def _read(file: Path) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(file.read_bytes())


def _has_signed(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _names(certificate: x509.Certificate) -> Iterable[str]:
    """Return what a certificate is for, as an operator wrote it."""
    try:
        held = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in held]


def _check_folder(setting: str, named: Path, folder: Path) -> None:
    """Raise `SettingError` unless this account may write in a folder, and no other."""
    if not folder.is_dir():
        raise SettingError(
            f"{setting} is {named}, and {folder} is no folder; make it: install -d -m 700 {folder}."
        )
    state = folder.stat()
    if not os.access(folder, os.W_OK | os.X_OK):
        raise SettingError(
            f"{setting} is {named}, and this account may not write in {folder}; give it the folder."
        )
    if state.st_mode & _OTHERS_WRITE or state.st_uid not in (os.geteuid(), 0):
        raise SettingError(
            f"{setting} is {named}, and other accounts may write in {folder} ({stat.filemode(state.st_mode)}); it must be a "
            "folder of this account's own: install -d -m 700."
        )


def _content(setting: str, file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SettingError(f"{setting} is {file}, which cannot be read: {error.strerror}.") from error


def _day(moment: datetime.datetime) -> str:
    return moment.date().isoformat()


def _moment(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(" ", "seconds")
