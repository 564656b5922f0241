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
                *(
                    "Restart=on-failure",
                    "StateDirectory=fedmf fedmf-counter",
                ),  # it notes what it uses in the first
            ],
        ),
        (UNITS[1], ["UMask=0077", "ProtectProc=invisible", "LimitCORE=0", "Restart=always"]),
    ],
)
def test_a_unit_holds_what_the_page_says(unit, lines):
    held = (FOLDER / unit).read_text().splitlines()
    assert [line for line in lines if line not in held] == []


def stop_command():
    """Return the shell command after a stop of the SuperLink, as systemd gives it to sh."""
    text = (FOLDER / UNITS[0]).read_text().replace("\\\n", "")
    return re.search(r"ExecStopPost=/bin/sh -c '(.*)'", text)[1].replace("$$", "$")


@pytest.mark.parametrize(
    ("result", "is_wiped"), [("success", True), ("timeout", True), ("signal", False), ("exit-code", False)]
)
def test_a_stop_wipes_and_a_crash_does_not(result, is_wiped, tmp_path):
    (tmp_path / "fedmf").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "fedmf").chmod(0o755)
    command = stop_command().replace("/opt/fedmf/.venv/bin", str(tmp_path))
    assert str(tmp_path) in command
    said = subprocess.check_output(["/bin/sh", "-c", command], env={"SERVICE_RESULT": result}, text=True)
    assert said == ("wipe server=/etc/fedmf/server.yaml\n" if is_wiped else "")


def test_the_check_before_a_node_starts_reads_the_data_that_it_will_hold(monkeypatch):
    """The words that systemd makes of $FEDMF_DATA are the overrides in the node's configuration."""
    from experiments.deployment.node import node_settings

    text = (FOLDER / UNITS[1]).read_text()
    data = re.search(r'Environment="FEDMF_DATA=(.*)"', text)[1]
    assert "ExecStartPre=-/opt/fedmf/.venv/bin/fedmf node_check loads_only=true $FEDMF_DATA\n" in text
    assert re.search(r"(?m)^ExecStart=.*/fedmf node (.*\\\n)*.* \$FEDMF_DATA$", text)
    settings = node_settings(data)
    assert (settings.clients, settings.dataset.name) == (479, "by_user_npz")


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


def test_the_rules_of_a_hospitals_page_name_no_account_that_its_host_lacks(tmp_path):
    """`nft` refuses a file that names an account which is not there; the proxy's is on the server host alone."""
    page = (FOLDER.parent / "hospital.md").read_text()
    (command,) = re.findall(r"(?m)^# (sed -i .*) /etc/fedmf/fedmf\.nft$", page)
    assert page.index(command) < page.index("# nft -f")
    rules = tmp_path / "fedmf.nft"
    shutil.copy(FOLDER / "fedmf.nft", rules)
    subprocess.run(["/bin/sh", "-c", f"{command} {rules}"], check=True)
    left = rules.read_text()
    assert set(re.findall(r'"([\w-]+)" *[,}]', left)) == {"fedmf"}
    assert "dport 9094" in left
    assert not re.search("dport 8000|server host", left)
    assert left.count("{") == left.count("}")


def test_the_rules_hold_the_ports_of_the_units():
    rules = (FOLDER / "fedmf.nft").read_text()
    (port,) = re.findall(r" port=(\d+)", (FOLDER / UNITS[1]).read_text())
    for number in (port, server_file().address.rpartition(":")[2]):
        assert f"tcp dport {number} meta skuid != " in rules


def server_file():
    """Return the settings of the file that the server's unit names."""
    from experiments.deployment.warm_server import ServerCommandSettings
    from experiments.settings.compose import compose
    from experiments.settings.operator_file import overrides_of

    line = "ExecStart=/opt/fedmf/.venv/bin/fedmf server config=/etc/fedmf/server.yaml"
    assert line in (FOLDER / UNITS[0]).read_text().splitlines()
    return compose("server", overrides_of(FOLDER / "server.yaml"), ServerCommandSettings)


def test_what_the_server_keeps_is_what_its_unit_makes_and_wipes():
    settings, text = server_file(), (FOLDER / UNITS[0]).read_text()
    assert f"fedmf wipe server={re.search(r'(?m)^ExecStart=.* config=(.*)', text)[1]};;" in text
    assert Path(settings.database).parent == Path("/run", re.search(r"(?m)^RuntimeDirectory=(.*)", text)[1])
    assert settings.home is None  # so that it is the unit's, which wipe is told by the environment as well
    assert re.search(r"(?m)^Environment=FLWR_HOME=/", text)


def test_released_rounds_are_counted_in_a_folder_of_their_own_that_the_unit_makes():
    """Outside the folder of the runs and of the account's home, which a restore sets back together."""
    text = (FOLDER / UNITS[0]).read_text()
    (state,) = re.findall(r"(?m)^Environment=FEDMF_STATE=(.*)", text)
    made = re.search(r"(?m)^StateDirectory=(.*)", text)[1].split()
    assert state in {f"/var/lib/{name}" for name in made[1:]}
    assert f"WorkingDirectory=/var/lib/{made[0]}\n" in text
    assert f"export FEDMF_STATE={state} " in (FOLDER.parent / "operator.md").read_text()


def test_a_stop_of_the_server_is_a_success_and_a_mistake_is_not_tried_again():
    """SIGTERM ends the command with 130: without the line a stop would count as a crash, and nothing would be wiped."""
    lines = (FOLDER / UNITS[0]).read_text().splitlines()
    assert {"SuccessExitStatus=130", "RestartPreventExitStatus=2", "KillMode=mixed"} <= set(lines)
