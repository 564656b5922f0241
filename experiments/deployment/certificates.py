"""Certificates for TLS and key pairs of nodes, as docs/deployment.md makes them with openssl and ssh-keygen."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from server.files import write_atomically


@dataclass(frozen=True)
class Certificates:
    """PEM files: the authority that both sides trust, and the SuperLink's own certificate and key."""

    authority: Path
    certificate: Path
    key: Path


def make_certificates(folder: Path, host: str, *, days: int = 2) -> Certificates:
    """Write a certificate authority of our own, whose key is not kept, and a certificate for the address `host`."""
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = _name("fedmf loopback authority")
    is_authority = x509.BasicConstraints(ca=True, path_length=0)
    root = _builder(authority, authority, authority_key, days).add_extension(is_authority, critical=True)
    root = root.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False
    )
    addresses = x509.SubjectAlternativeName(
        [x509.IPAddress(ipaddress.ip_address(host)), x509.DNSName("localhost")]
    )
    own = _builder(_name(host), authority, key, days).add_extension(addresses, critical=False)
    own = own.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
    )
    files = Certificates(folder / "ca.crt", folder / "server.pem", folder / "server.key")
    for file, builder in ((files.authority, root), (files.certificate, own)):
        signed = builder.sign(authority_key, hashes.SHA256())
        file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_atomically(files.key, secret, mode=0o600)
    return files


def make_node_key(folder: Path, node: str) -> Path:
    """Write a node's key pair, folder/NODE and folder/NODE.pub in OpenSSH's format, and return the public file."""
    key = ec.generate_private_key(ec.SECP384R1())
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    write_atomically(folder / node, secret, mode=0o600)
    public = folder / f"{node}.pub"
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
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
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
