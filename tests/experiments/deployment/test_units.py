"""The units and the firewall file: what they let the services do, and whom they let reach Flower's ports."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "systemd"
UNITS = ("fedmf-superlink.service", "fedmf-supernode.service")
ANALYZE, NFT = shutil.which("systemd-analyze"), shutil.which("nft", path=f"{os.environ['PATH']}:/usr/sbin")
MAY_UNSHARE = (
    NFT and subprocess.run(["unshare", "-n", NFT, "list", "ruleset"], capture_output=True).returncode == 0
)
unit = pytest.mark.parametrize("unit", UNITS)


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
@unit
def test_a_unit_is_exposed_below_4(unit):
    command = [ANALYZE, "security", "--offline=true", "--threshold=39", FOLDER / unit]  # tenths
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Overall exposure level" in done.stdout, done.stderr
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
@unit
def test_systemd_reads_every_line_of_a_unit(unit, tmp_path):
    text = re.sub(r"(?m)^(Exec\w+=|    exec )/opt/fedmf/\S+", r"\1/bin/true", (FOLDER / unit).read_text())
    (tmp_path / unit).write_text(text)
    done = subprocess.run([ANALYZE, "verify", tmp_path / unit], capture_output=True, text=True, check=False)
    assert unit not in done.stderr, done.stderr  # it tells of the machine's other units too
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("unit", "lines"),
    [
        (
            UNITS[0],
            [
                *("UMask=0077", "ProtectProc=invisible", "LimitCORE=0", "IPAddressDeny=any"),
                *("Restart=on-failure", "StateDirectory=fedmf fedmf-counter"),
            ],
        ),
        (UNITS[1], ["UMask=0077", "ProtectProc=invisible", "LimitCORE=0", "Restart=always"]),
    ],
)
def test_a_unit_holds_what_the_page_says(unit, lines):
    held = (FOLDER / unit).read_text().splitlines()
    assert [line for line in lines if line not in held] == []


LISTEN = """
import encodings.idna, os, socket, subprocess, sys  # all before the account changes: it may not read them
nft, rules = sys.argv[1:]
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
for _ in range(2):
    subprocess.run([nft, "-f", rules], check=True)
print(subprocess.check_output([nft, "list", "ruleset"], text=True).count("reject"), "rules", flush=True)
for port in (8000, 9094):
    listening = socket.create_server(("127.0.0.1", port))
    for account in (0, 1001, 1002, 1003):
        if not os.fork():
            os.setgroups([]), os.setgid(account), os.setuid(account)
            try:
                socket.create_connection(("127.0.0.1", port), timeout=5)
                print(port, account, "connected", flush=True)
            except OSError as error:
                print(port, account, type(error).__name__, flush=True)
            os._exit(0)
        os.wait()
"""


@pytest.mark.skipif(
    not MAY_UNSHARE or not shutil.which("ip"),
    reason="nft, or the right to a network of one's own, is missing",
)
def test_no_other_account_reaches_the_ports(tmp_path):
    """In a network of its own: 1001 is fedmf, 1002 the proxy, 1003 anybody else."""
    rules = (FOLDER / "fedmf.nft").read_text()
    (tmp_path / "rules").write_text(rules.replace('"fedmf"', "1001").replace('"www-data"', "1002"))
    command = ["unshare", "-n", sys.executable, "-c", LISTEN, NFT, tmp_path / "rules"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.stdout.splitlines() == [
        "2 rules",  # a second time replaces the first
        "8000 0 connected",
        "8000 1001 connected",
        "8000 1002 connected",
        "8000 1003 ConnectionRefusedError",
        "9094 0 ConnectionRefusedError",
        "9094 1001 connected",
        "9094 1002 ConnectionRefusedError",
        "9094 1003 ConnectionRefusedError",
    ], said.stderr


def test_the_rules_hold_the_ports_of_the_units():
    rules = (FOLDER / "fedmf.nft").read_text()
    for unit in UNITS:
        (port,) = re.findall(r" --port (\d+)", (FOLDER / unit).read_text())
        assert f"tcp dport {port} meta skuid != " in rules


def test_released_rounds_are_counted_in_a_folder_of_their_own_that_the_unit_makes():
    """Outside the folder of the runs and of the account's home, which a restore sets back together."""
    text = (FOLDER / UNITS[0]).read_text()
    (state,) = re.findall(r"(?m)^Environment=FEDMF_STATE=(.*)", text)
    made = re.search(r"(?m)^StateDirectory=(.*)", text)[1].split()
    assert state in {f"/var/lib/{name}" for name in made[1:]}
    assert f"WorkingDirectory=/var/lib/{made[0]}\n" in text
    assert f"FEDMF_STATE={state} " in (FOLDER.parent / "deployment.md").read_text()


def test_a_stop_is_a_success():
    """SIGTERM ends Flower's program, and with it ours with 143: without the line a stop would count as a crash."""
    for unit in UNITS:
        assert {"SuccessExitStatus=143", "KillMode=mixed"} <= set((FOLDER / unit).read_text().splitlines())
