"""The files with which a server may start: what is wrong with certificate, key, database and clock is said in a sentence."""

import datetime
import ipaddress
import os
import re
import sqlite3
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from experiments.deployment import server_files
from experiments.deployment.certificates import make_certificates
from experiments.deployment.server_files import (
    check_certificates,
    check_clock,
    check_database,
    check_home,
    check_key,
)
from fedmf.errors import SettingError

HOST = "127.0.0.1"
NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


def name(text):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


class Authority:
    """An authority of a test, which signs certificates of any dates and names."""

    def __init__(self, folder, begins=NOW - 100 * DAY, ends=NOW + 100 * DAY, called="authority"):
        self.folder, self.key, self.called = folder, ec.generate_private_key(ec.SECP256R1()), called
        folder.mkdir(exist_ok=True)
        is_authority = x509.BasicConstraints(ca=True, path_length=None)
        signed = self.builder(name(called), self.key, begins, ends).add_extension(is_authority, critical=True)
        self.file = self.written("ca.crt", signed.sign(self.key, hashes.SHA256()))

    def builder(self, subject, key, begins, ends):
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(name(self.called))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(ends)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False
            )
        )

    def written(self, called, certificate):
        file = self.folder / called
        file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return file

    def server(self, begins=NOW - DAY, ends=NOW + 90 * DAY, addresses=(HOST,), names=("localhost",)):
        """Return the files of a certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        named = [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        named += [x509.DNSName(text) for text in names]
        signed = self.builder(name("server"), key, begins, ends)
        if named:
            signed = signed.add_extension(x509.SubjectAlternativeName(named), critical=False)
        certificate = self.written("server.pem", signed.sign(self.key, hashes.SHA256()))
        return certificate, write_key(self.folder / "server.key", key)


def write_key(file, key, how=None):
    how = how or serialization.NoEncryption()
    file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how))
    file.chmod(0o600)
    return file


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path / "files")


def refused(check, *given):
    with pytest.raises(SettingError) as error:
        check(*given)
    return str(error.value)


def test_the_files_of_a_deployment_are_accepted_without_a_word(authority, tmp_path, caplog):
    certificate, key = authority.server(names=("fedmf.example.org",))
    check_key(key)
    check_certificates(certificate, key, authority.file, [HOST, "fedmf.example.org"])
    made = make_certificates(tmp_path, HOST, days=60)
    check_certificates(made.certificate, made.key, made.authority, [HOST, "localhost"])
    assert caplog.text == ""


def test_what_expires_soon_is_spoken_of(authority, caplog):
    check_certificates(*authority.server(ends=NOW + 9 * DAY), authority.file, [HOST])
    assert re.search(r"certificate is .*server\.pem, which expires in [89] days", caplog.text)


def test_of_two_authorities_in_a_file_the_one_that_signed_is_looked_at(authority, tmp_path, caplog):
    """While an authority is being replaced the nodes have both, and the old one ends soon."""
    old = Authority(tmp_path / "old", ends=NOW + 5 * DAY)
    both = tmp_path / "both.crt"
    both.write_bytes(old.file.read_bytes() + authority.file.read_bytes())
    check_certificates(*authority.server(), both, [HOST])
    assert caplog.text == ""
    check_certificates(*old.server(ends=NOW + 60 * DAY), both, [HOST])
    assert re.search(r"authority is .*both\.crt, which expires in [45] days", caplog.text)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o602])
def test_a_key_that_another_account_can_read_is_refused(authority, mode):
    _, key = authority.server()
    key.chmod(mode)
    assert f"run chmod 600 {key}" in refused(check_key, key)


def test_missing_files_are_named(authority, tmp_path):
    certificate, key = authority.server()
    none = tmp_path / "none"
    assert f"key is {none}, which cannot be read: No such file" in refused(check_key, none)
    for given, setting in (
        ((none, key, authority.file), "certificate"),
        ((certificate, key, none), "authority"),
    ):
        assert f"{setting} is {none}, which cannot be read" in refused(check_certificates, *given, [HOST])


def test_files_that_are_no_certificate_or_no_key_are_named(authority, tmp_path):
    certificate, key = authority.server()
    for given, said in (
        ((key, key, authority.file), f"certificate is {key}, which holds no certificate"),
        ((certificate, key, key), f"authority is {key}, which holds no certificate"),
        ((certificate, certificate, authority.file), f"key is {certificate}, which holds no private key"),
    ):
        assert said in refused(check_certificates, *given, [HOST])


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked(authority, tmp_path):
    certificate, _ = authority.server()
    locked = write_key(
        tmp_path / "locked",
        ec.generate_private_key(ec.SECP256R1()),
        serialization.BestAvailableEncryption(b"secret"),
    )
    said = refused(check_certificates, certificate, locked, authority.file, [HOST])
    assert "no private key in PEM format without a passphrase" in said


def test_a_key_of_another_certificate_is_refused(authority, tmp_path):
    certificate, _ = authority.server()
    other = write_key(tmp_path / "other", ec.generate_private_key(ec.SECP256R1()))
    said = refused(check_certificates, certificate, other, authority.file, [HOST])
    assert said.startswith(f"key is {other}, which does not fit certificate")


def test_an_expired_certificate_and_one_of_tomorrow_are_refused(authority):
    day = (NOW - 2 * DAY).date().isoformat()
    said = refused(
        check_certificates, *authority.server(NOW - 9 * DAY, NOW - 2 * DAY), authority.file, [HOST]
    )
    assert f"which expired on {day}; renew it" in said
    said = refused(check_certificates, *authority.server(begins=NOW + DAY), authority.file, [HOST])
    assert "which is valid from" in said
    assert "set the clock if it is wrong" in said


def test_an_expired_authority_is_refused(tmp_path):
    old = Authority(tmp_path / "files", ends=NOW - DAY)
    said = refused(check_certificates, *old.server(), old.file, [HOST])
    assert f"authority is {old.file}, which has expired" in said


def test_a_certificate_for_another_name_or_without_one_is_refused(authority):
    files = authority.server(addresses=("192.0.2.1",), names=("other.example.org",))
    said = refused(check_certificates, *files, authority.file, [HOST])
    assert "which is for 192.0.2.1, other.example.org and not for 127.0.0.1" in said
    files = authority.server()
    said = refused(check_certificates, *files, authority.file, [HOST, "fedmf.example.org"])
    assert "which is for 127.0.0.1, localhost and not for fedmf.example.org" in said
    files = authority.server(addresses=(), names=())
    assert "which is for no name" in refused(check_certificates, *files, authority.file, [HOST])


@pytest.mark.parametrize("called", ["authority", "another"])
def test_a_certificate_of_another_authority_is_refused(authority, tmp_path, called):
    other = Authority(tmp_path / "other", called=called)
    said = refused(check_certificates, *authority.server(), other.file, [HOST])
    assert f"which was not signed by authority, {other.file}" in said


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "own"
    made.mkdir(mode=0o700)
    return made


def superlinks(file):
    """A database with the tables of a SuperLink's, of this account alone."""
    with sqlite3.connect(file) as opened:
        for table in ("message_ins", "message_res", "run"):
            opened.execute(f"create table {table} (x)")
    opened.close()
    file.chmod(0o600)
    return file


def test_a_database_that_is_new_or_a_superlinks_own_is_accepted(folder):
    check_database(folder / "superlink.db")
    check_database(superlinks(folder / "superlink.db"))


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_folder_in_which_others_can_write_is_refused(folder, mode):
    folder.chmod(mode)
    for check, given in ((check_database, folder / "superlink.db"), (check_home, folder)):
        assert f"other accounts may write in {folder}" in refused(check, given)


def test_a_folder_of_nobody_and_a_relative_path_are_refused(folder):
    assert "is no folder; make it: install -d -m 700" in refused(check_database, folder / "none" / "s.db")
    assert "it must be an absolute path" in refused(check_database, Path("s.db"))
    assert "it must be an absolute path" in refused(check_home, Path("flwr"))
    assert "is no folder" in refused(check_home, folder / "none" / "flwr")
    check_home(folder / "flwr")


def test_a_folder_in_which_this_account_cannot_write_is_refused(folder, monkeypatch):
    """Root may write everywhere: what the system would say to another account is made up here."""
    if os.geteuid() == 0:
        monkeypatch.setattr(server_files.os, "access", lambda *_: False)
    folder.chmod(0o500)
    assert f"this account may not write in {folder}" in refused(check_database, folder / "s.db")


def test_a_file_that_is_no_database_or_that_others_can_read_is_refused(folder):
    text = folder / "server.key"
    text.write_text("hello\n")
    assert "which SQLite did not write" in refused(check_database, text)
    file = superlinks(folder / "superlink.db")
    file.chmod(0o640)
    assert "which another account owns or can read" in refused(check_database, file)


def test_a_database_that_another_superlink_uses_is_refused(folder):
    file = superlinks(folder / "superlink.db")
    with file.open("rb"):
        assert f"which process {os.getpid()} uses; two SuperLinks" in refused(check_database, file)


def test_a_clock_that_is_behind_the_files_is_refused(authority):
    certificate, key = authority.server()
    files = {"certificate": certificate, "key": key, "authority": certificate.parent / "none"}
    check_clock(files)
    written = certificate.stat().st_mtime
    check_clock(files, written - 200)
    said = refused(check_clock, files, written - 86400)
    assert said.startswith("this machine's clock shows ")
    assert f"certificate, {certificate}, was written at" in said
