"""`certificates`: what openssl and Flower accept, and that no call loses or overwrites anything."""

import datetime
import json
import os
import shutil
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509

from experiments.certificates import CertificatesSettings, certificates
from experiments.deployment import certificate_folder
from experiments.deployment.certificate_folder import standing
from experiments.deployment.certificates import Certificates
from experiments.deployment.loopback import Loopback
from experiments.run_files.reader import is_finished
from experiments.settings.compose import compose
from fedmf.errors import SettingError

OPENSSL = shutil.which("openssl")
FILES = ["ca.crt", "ca.key", "server.key", "server.pem"]
HOST = "fedmf.example.org"


def call(folder, *overrides):
    certificates(compose("certificates", [f"directory={folder}", *overrides], CertificatesSettings))


def shown(folder, capsys, *overrides):
    capsys.readouterr()
    call(folder, "output=json", *overrides)
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def folder(tmp_path):
    call(tmp_path / "c", f"name={HOST}", "names=[other.example.org,'2001:db8::7']")
    return tmp_path / "c"


def files_of(folder):
    return {
        path.name: path.read_bytes() for path in sorted(folder.iterdir()) if not path.name.startswith(".")
    }


def verified(authority, certificate, *more):
    """What openssl says of a certificate as a server's, and whether it is accepted."""
    command = [OPENSSL, "verify", "-x509_strict", "-purpose", "sslserver", "-no-CApath", "-no-CAstore"]
    done = subprocess.run(
        [*command, "-CAfile", authority, *more, certificate], capture_output=True, text=True, check=False
    )
    return done.returncode == 0


needs_openssl = pytest.mark.skipif(OPENSSL is None, reason="openssl is not installed")


@needs_openssl
def test_openssl_accepts_the_certificate_for_each_of_its_names_and_no_other(folder):
    files = folder / "ca.crt", folder / "server.pem"
    assert verified(*files)
    for name in (HOST, "other.example.org", "localhost"):
        assert verified(*files, "-verify_hostname", name), name
    for address in ("127.0.0.1", "2001:db8::7"):
        assert verified(*files, "-verify_ip", address), address
    assert not verified(*files, "-verify_hostname", "elsewhere.example.org")
    assert not verified(*files, "-verify_ip", "127.0.0.2")
    in_a_year = int(datetime.datetime.now().timestamp()) + 366 * 86400
    assert not verified(*files, "-attime", str(in_a_year))


@needs_openssl
def test_openssl_reads_both_keys_and_they_fit(folder):
    for key, certificate in (("ca.key", "ca.crt"), ("server.key", "server.pem")):
        public = subprocess.check_output([OPENSSL, "pkey", "-in", folder / key, "-pubout"])
        assert public == subprocess.check_output(
            [OPENSSL, "x509", "-in", folder / certificate, "-noout", "-pubkey"]
        )


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o177])
def test_keys_are_their_owners_alone_under_any_umask_and_what_is_public_can_be_read(umask, tmp_path):
    folder = tmp_path / "c"
    before = os.umask(umask)
    try:
        call(folder, f"name={HOST}")
        call(folder, "renew=authority")
        call(folder, "renew=server")
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir() if path.suffix != ".lock"
    }
    assert len(modes) == 8
    assert modes == {name: 0o600 if name.endswith(".key") else 0o644 for name in modes}


def test_nothing_is_overwritten_unasked(folder):
    before = files_of(folder)
    assert sorted(before) == FILES
    with pytest.raises(SettingError, match=r"holds ca\.key and server\.key and .*nothing was overwritten"):
        call(folder, f"name={HOST}")
    assert files_of(folder) == before
    for name in FILES:  # one of them alone is not overwritten either
        (folder / name).unlink()
    (folder / "server.key").write_text("the key of another program")
    with pytest.raises(
        SettingError, match=r"holds server\.key; and no ca\.crt\. If nodes were ever given one, put it back"
    ):
        call(folder, f"name={HOST}")
    assert files_of(folder) == {"server.key": b"the key of another program"}


@needs_openssl
def test_a_renewed_server_has_another_key_the_same_names_and_authority_and_the_old_one_is_kept(
    folder, capsys
):
    before = files_of(folder)
    said = shown(folder, capsys, "renew=server", "days=90")
    after = files_of(folder)
    assert [after.pop(name) for name in said["kept"]] == [before["server.key"], before["server.pem"]]
    assert sorted(after) == FILES
    assert [after[name] == before[name] for name in FILES] == [True, True, False, False]
    (row,) = (row for row in said["certificates"] if row["file"] == "server.pem")
    assert row["names"] == [HOST, "other.example.org", "2001:db8::7", "localhost", "127.0.0.1"]
    assert (row["days_left"], said["warnings"]) == (89, [])
    assert verified(folder / "ca.crt", folder / "server.pem", "-verify_hostname", HOST)
    said = shown(folder, capsys, "renew=server", "name=new.example.org")
    (row,) = (row for row in said["certificates"] if row["file"] == "server.pem")
    assert row["names"] == ["new.example.org", "localhost", "127.0.0.1"]


@needs_openssl
def test_who_has_the_bundle_trusts_the_server_before_and_after_the_change_of_authority(folder, tmp_path):
    old, new = tmp_path / "old.crt", tmp_path / "new.crt"
    shutil.copy(folder / "ca.crt", old)
    call(folder, "renew=authority")
    bundle, server = folder / "ca.crt", folder / "server.pem"
    authorities = x509.load_pem_x509_certificates(bundle.read_bytes())
    assert len(authorities) == 2
    new.write_text(bundle.read_text().split("-----END CERTIFICATE-----\n")[0] + "-----END CERTIFICATE-----\n")
    assert [verified(trusted, server) for trusted in (old, bundle, new)] == [True, True, False]
    call(folder, "renew=server")
    assert [verified(trusted, server) for trusted in (old, bundle, new)] == [False, True, True]


def at(monkeypatch, days):
    """Let `days` pass for the commands."""
    then = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    monkeypatch.setattr(certificate_folder, "_now", lambda: then)
    return then


def test_it_says_when_less_than_30_days_are_left_and_what_has_expired(folder, monkeypatch):
    for days, says in (
        (334, []),
        (336, ["fedmf.example.org in server.pem expires in 28 days"]),
        (366, ["fedmf.example.org in server.pem expired on "]),
        (3630, ["fedmf authority ", "fedmf.example.org in server.pem expired on "]),
    ):
        at(monkeypatch, days)
        said = standing(folder).warnings
        assert len(said) == len(says)
        for line, expected in zip(said, says, strict=True):
            assert line.startswith(expected)
    assert "in ca.crt expires in 19 days" in said[0]
    assert said[0].endswith("renew=authority.")
    assert said[1].endswith("renew=server.")


def test_authorities_that_have_expired_leave_the_bundle_and_older_ones_are_not_warned_of(folder, monkeypatch):
    at(monkeypatch, 3640)
    call(folder, "renew=authority", "authority_days=7300")  # made today, all the same
    assert [entry.file for entry in standing(folder).held] == ["ca.crt", "ca.crt", "server.pem"]
    assert [line.split()[0] for line in standing(folder).warnings] == ["fedmf.example.org"]
    at(monkeypatch, 3660)
    call(folder, "renew=authority", "authority_days=7300")
    assert [entry.file for entry in standing(folder).held] == ["ca.crt", "ca.crt", "server.pem"]


def test_a_certificate_never_outlives_its_authority(folder, monkeypatch):
    at(monkeypatch, 3400)
    before = files_of(folder)
    with pytest.raises(SettingError, match=r"days is 365, and the authority in .* is valid for 249 more"):
        call(folder, "renew=server")
    assert files_of(folder) == before


@pytest.mark.parametrize("what", ["name=a.example", "renew=server", "renew=authority"])
def test_cut_short_at_any_rename_nothing_is_lost_and_the_next_call_mends_it(what, tmp_path, monkeypatch):
    """Two renewals can be told apart, and every old key is there under one name or the other."""
    rename, cut = Path.replace, 0
    while True:
        folder = tmp_path / str(cut)
        if what.startswith("renew"):
            call(folder, f"name={HOST}")
        before, left = files_of(folder) if folder.exists() else {}, [cut]

        def replacing(self, target, folder=folder, left=left):
            if self.parent == folder:
                if not left[0]:
                    raise KeyboardInterrupt
                left[0] -= 1
            return rename(self, target)

        monkeypatch.setattr(Path, "replace", replacing)
        try:
            call(folder, what)
        except KeyboardInterrupt:
            was_cut = True
        else:
            was_cut = False
        monkeypatch.setattr(Path, "replace", rename)
        after = files_of(folder)
        assert not [name for name in after if name.endswith(".new")]
        assert set(before.values()) <= set(after.values())
        if what == "name=a.example" and was_cut:
            assert "ca.crt" not in after
            for name in after:  # as the sentence says
                (folder / name).unlink()
            call(folder, what)
        elif was_cut:
            said = standing(folder).warnings
            assert all("server.key is not the key of server.pem" in line for line in said)
            if what == "renew=authority":
                assert said == ()
            elif cut == 3:  # both copies and the key
                assert len(said) == 1
            call(folder, what)
        assert standing(folder).warnings == ()
        if not was_cut:
            break
        cut += 1
    assert cut == 4


def test_what_does_not_fit_together_is_said(folder, tmp_path):
    call(tmp_path / "other", f"name={HOST}")
    own = files_of(folder)
    for name, says in (
        ("ca.crt", "server.pem is not signed by an authority in ca.crt"),
        ("ca.key", "ca.key is not the key of ca.crt"),
        ("server.key", "server.key is not the key of server.pem"),
    ):
        shutil.copy(tmp_path / "other" / name, folder / name)
        assert [line for line in standing(folder).warnings if line.startswith(says)], name
        (folder / name).write_bytes(own[name])
    (folder / "server.key").chmod(0o640)
    assert "chmod 600" in standing(folder).warnings[0]
    for name in ("ca.key", "ca.crt"):  # a server host has neither the key, nor must a proxy's the authority
        (folder / name).unlink()
        (folder / "server.key").chmod(0o600)
        assert standing(folder).warnings == ()


def test_renewals_that_cannot_be_made_are_refused_and_change_nothing(folder, tmp_path):
    call(tmp_path / "other", f"name={HOST}")
    shutil.copy(tmp_path / "other" / "ca.key", folder / "ca.key")
    before = files_of(folder)
    with pytest.raises(SettingError, match="is not the key of an authority in"):
        call(folder, "renew=server")
    assert files_of(folder) == before
    (folder / "ca.key").unlink()
    with pytest.raises(SettingError, match=r"ca\.key is missing: a certificate is renewed where"):
        call(folder, "renew=server")
    (folder / "server.pem").write_text("no certificate")
    with pytest.raises(SettingError, match=r"server\.pem cannot be read as a certificate"):
        call(folder)


@pytest.mark.parametrize(
    "name", ["a.example:8443", "https://a.example", "a b", "300.1.2.3", "", "-a.example", "a..b", "bücher.de"]
)
def test_a_name_that_no_certificate_can_have_makes_nothing(name, tmp_path):
    with pytest.raises(SettingError, match="must be a host name such as"):
        call(tmp_path / "c", f"name='{name}'")
    assert not (tmp_path / "c").exists()


def test_a_folder_that_others_may_write_to_gets_no_keys(tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "c").chmod(0o770)
    with pytest.raises(SettingError, match="which others than its owner may write to"):
        call(tmp_path / "c", f"name={HOST}")
    assert not list((tmp_path / "c").iterdir())


@pytest.mark.slow
@pytest.mark.deployment
def test_a_deployment_goes_from_one_authority_to_the_next(tmp_path):
    """Trained with the first, with the bundle, and after the server's renewal; a node without the bundle is left out."""
    folder, data = tmp_path / "c", "dataset=synthetic dataset.clients=6 dataset.features=5 dataset.classes=3"
    call(folder, f"name={HOST}")
    shutil.copy(folder / "ca.crt", tmp_path / "old.crt")
    with Loopback() as loopback:
        bundled = Certificates(folder / "ca.crt", folder / "server.pem", folder / "server.key")
        loopback.certificates = bundled

        def trained(name):
            directory = tmp_path / name
            process = loopback.submit(
                f"{data} run.directory={directory} population.min_available=6 population.cohort_size=6 "
                "population.epochs=1"
            )
            process.wait(300)
            assert is_finished(directory), loopback.tail("run") + loopback.tail("a")

        loopback.start_superlink()
        loopback.register("a")
        loopback.start_node("a", f"clients=6 {data}")
        trained("first")
        call(folder, "renew=authority")
        loopback.stop("a")
        loopback.start_node(
            "a", f"clients=6 {data}"
        )  # it has the bundle now, and the server the old certificate
        trained("bundle")
        call(folder, "renew=server")
        loopback.stop("superlink")
        loopback.start_superlink()
        trained("renewed")
        loopback.register("b")
        loopback.certificates = replace(bundled, authority=tmp_path / "old.crt")
        loopback.start_node("b", f"clients=6 {data}")
        deadline = datetime.datetime.now() + datetime.timedelta(seconds=120)
        while "was not signed by the authority" not in loopback.log("b").read_text():
            assert datetime.datetime.now() < deadline, loopback.tail("b")
