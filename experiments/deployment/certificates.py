"""Certificates for TLS, those of an authority of one's own and of the server, and key pairs of nodes.

`make_certificates` makes the short-lived ones of a deployment on the loopback interface; those of a real one are kept
and renewed by `experiments/deployment/certificate_folder.py`.
"""

import datetime
import ipaddress
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedmf.errors import SettingError
from server.files import write_atomically

OWN_NAMES = (
    "localhost",
    "127.0.0.1",
)  # by which server app, operator and proxy reach the SuperLink on its host
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*")
_LONGEST_TITLE = 64  # characters of a common name


@dataclass(frozen=True)
class Certificates:
    """PEM files: the authority that both sides trust, and the SuperLink's own certificate and key."""

    authority: Path
    certificate: Path
    key: Path


@dataclass(frozen=True)
class Signed:
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        """The certificate as the content of a file."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """The private key as the content of a file, without a passphrase."""
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


def new_authority(days: int) -> Signed:
    """Return a new authority, valid for `days` from now, which signs servers' certificates and no other authority.

    Its name ends in random digits, so that two of them are told apart.
    """
    key, name = ec.generate_private_key(ec.SECP256R1()), _name(f"fedmf authority {secrets.token_hex(4)}")
    builder = (
        _builder(name, name, key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return Signed(builder.sign(key, hashes.SHA256()), key)


def new_server(authority: Signed, names: Sequence[str], days: int) -> Signed:
    """Return a new certificate, with a new key, for a server of these names, which `authority` signs.

    It is for localhost and 127.0.0.1 too. Raises `SettingError` for a name that is no host name and no address.
    """
    called = [_general_name(name) for name in with_own(names)]
    key = ec.generate_private_key(ec.SECP256R1())
    title = names[0] if len(names[0]) <= _LONGEST_TITLE else "fedmf server"
    builder = (
        _builder(_name(title), authority.certificate.subject, key, days)
        .add_extension(x509.SubjectAlternativeName(called), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False
        )
    )
    return Signed(builder.sign(authority.key, hashes.SHA256()), key)


def with_own(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names with those that every server has on its own host, each once.

    >>> with_own(["a.example", "localhost"])
    ('a.example', 'localhost', '127.0.0.1')
    """
    return tuple(dict.fromkeys((*names, *OWN_NAMES)))


def names_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the host names and addresses that a certificate is for, in its order."""
    try:
        held = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(str(name.value) for name in held if isinstance(name, x509.DNSName | x509.IPAddress))


def make_certificates(folder: Path, host: str, *, days: int = 2) -> Certificates:
    """Write a certificate authority of our own, whose key is not kept, and a certificate for the address `host`."""
    authority = new_authority(days)
    own = new_server(authority, [host], days)
    files = Certificates(folder / "ca.crt", folder / "server.pem", folder / "server.key")
    write_atomically(files.authority, authority.certificate_pem)
    write_atomically(files.certificate, own.certificate_pem)
    write_atomically(files.key, own.key_pem, mode=0o600)
    return files


def make_node_key(folder: Path, node: str) -> Path:
    """Write a node's key pair, folder/NODE and folder/NODE.pub in OpenSSH's format, and return the public file."""
    key = ec.generate_private_key(ec.SECP384R1())
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    write_atomically(folder / node, secret, mode=0o600)
    public = folder / f"{node}.pub"
    write_atomically(
        public,
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH),
    )
    return public


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks of others may be behind
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    """Return what a key may be used for: an authority's to sign certificates, a server's to sign its handshakes."""
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def check_host(setting: str, name: str) -> None:
    """Raise `SettingError` for a `name`, the value of `setting`, that is no host name and no address.

    >>> check_host("name", "fedmf.example.org"), check_host("name", "::1")
    (None, None)
    >>> check_host("name", "fedmf..example.org")
    Traceback (most recent call last):
    fedmf.errors.SettingError: name is 'fedmf..example.org'; it must be a host name such as fedmf.example.org, or an address, without a port and without https://.
    """
    if _is_address(name):
        return
    if not _HOST.fullmatch(name) or re.fullmatch(r"[0-9.]+", name):  # digits alone are a mistyped address
        letters = (
            "" if name.isascii() else " Other letters than a to z are written as DNS holds them: xn--..."
        )
        scope = (
            " What follows % in an address of IPv6 names an interface of one machine; leave it out."
            if "%" in name
            else ""
        )
        raise SettingError(
            f"{setting} is {name!r}; it must be a host name such as fedmf.example.org, or an address, without a port and without "
            f"https://.{letters}{scope}"
        )


def _is_address(name: str) -> bool:
    """Say whether a name is an address; with a scope id after % it is one on a single machine alone, or anything at all."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return "%" not in name


def _general_name(name: str) -> x509.GeneralName:
    """Return a name as it stands in a certificate. Raises `SettingError` for what is no host name and no address."""
    check_host("name", name)
    return x509.IPAddress(ipaddress.ip_address(name)) if _is_address(name) else x509.DNSName(name)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
