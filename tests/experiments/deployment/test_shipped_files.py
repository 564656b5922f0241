"""Units, firewall file, image and compose files: no root, nothing writable, no port but the proxy's, one set of commands."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from experiments.deployment.warm import GRACE

ROOT = Path(__file__).resolve().parents[3]
FOLDER, CONTAINERS = ROOT / "docs" / "systemd", ROOT / "docs" / "containers"
UNITS = ("fedmf-superlink.service", "fedmf-supernode.service")
TEXTS = {name: (FOLDER / name).read_text() for name in UNITS}
SERVICES = {
    f"{file}:{name}": service
    for file in ("server", "node")
    for name, service in yaml.safe_load((CONTAINERS / f"{file}.yaml").read_text())["services"].items()
}
SERVER, NODE, PROXY = (SERVICES[name] for name in ("server:superlink", "node:node", "server:proxy"))
STARTED = (  # each unit with the service that starts the same
    (TEXTS[UNITS[0]], SERVER, SERVER["command"]),
    (TEXTS[UNITS[1]], NODE, NODE["command"][2].replace("$$", "$").partition("; exec ")[2]),
)
VOLUMES = ("state:/var/lib/fedmf", "counter:/var/lib/fedmf-counter")
PROXY_FILE, RULES = (ROOT / "docs/nginx/fedmf-proxy.conf").read_text(), (FOLDER / "fedmf.nft").read_text()
ANALYZE = shutil.which("systemd-analyze")
NFT = shutil.which("nft", path=f"{os.environ['PATH']}:/usr/sbin")


def done(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False)


def value_of(text, key):
    """Return the value of a key of a unit that stands there once."""
    (value,) = re.findall(rf'(?m)^(?:Environment=)?"?{key}=([^"\n]*)', text)
    return value


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", UNITS)
def test_systemd_reads_every_line_of_a_unit_and_finds_it_exposed_below_4(unit, tmp_path):
    looked = done(ANALYZE, "security", "--offline=true", "--threshold=39", FOLDER / unit)  # tenths
    assert "Overall exposure level" in looked.stdout, looked.stderr
    assert looked.returncode == 0, looked.stdout[-3000:]
    text = re.sub(r"(?m)^(Exec\w+=|    exec )/opt/fedmf/\S+", r"\1/bin/true", TEXTS[unit])
    (tmp_path / unit).write_text(text)
    verified = done(ANALYZE, "verify", tmp_path / unit)
    assert unit not in verified.stderr, verified.stderr  # it tells of the machine's other units too
    assert verified.returncode == 0


def test_nothing_unnoised_is_written_to_a_disk_by_what_we_ship():
    """The database, and what Flower unpacks, are below /run; nginx keeps whole requests and answers in memory."""
    text = TEXTS[UNITS[0]].replace("\\\n", "")
    (database,) = re.findall(r" --database (\S+)", text)
    runtime = {f"/run/{name}" for name in value_of(text, "RuntimeDirectory").split()}
    assert str(Path(database).parent) in runtime
    settings = dict(re.findall(r"(?m)^ *(\w+) ([^;$\n]+);", PROXY_FILE))
    assert settings["client_body_buffer_size"] == settings["client_max_body_size"]
    memory = {"proxy_buffering": "off", "proxy_max_temp_file_size": "0", "access_log": "off"}
    assert settings == settings | memory
    assert "--database /run/fedmf/superlink.db" in SERVER["command"]
    assert any(place.startswith("/run/fedmf:") for place in SERVER["tmpfs"])


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
    not NFT or not shutil.which("ip") or done("unshare", "-n", str(NFT), "list", "ruleset").returncode != 0,
    reason="nft, or the right to a network of its own, is missing",
)
def test_no_other_account_reaches_the_ports(tmp_path):
    """In a network of its own: 1001 is fedmf, 1002 the proxy, 1003 any other account."""
    (tmp_path / "rules").write_text(RULES.replace('"fedmf"', "1001").replace('"www-data"', "1002"))
    said = done("unshare", "-n", sys.executable, "-c", LISTEN, NFT, tmp_path / "rules")
    reached = {"8000": ("0", "1001", "1002"), "9094": ("1001",)}
    expected = [
        f"{port} {account} {'connected' if account in reached[port] else 'ConnectionRefusedError'}"
        for port in reached
        for account in ("0", "1001", "1002", "1003")
    ]
    assert said.stdout.splitlines() == ["2 rules", *expected], said.stderr  # a second time replaces the first


def test_the_rules_hold_the_ports_of_the_units_and_only_that_of_the_proxy_is_published():
    for text in TEXTS.values():
        (port,) = re.findall(r" --port (\d+)", text)
        assert f"tcp dport {port} meta skuid != " in RULES
    ports = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert ports == {"server:superlink": ["8443:8443"]}
    assert PROXY["network_mode"] == "service:superlink"
    assert re.search(r"(?m)^    listen 8443 ssl;", PROXY_FILE)


def test_the_image_does_not_run_as_root_and_installs_every_package_by_its_hash_or_from_the_source():
    text = re.sub(r"(?m)^#.*\n", "", (ROOT / "Dockerfile").read_text()).replace("\\\n", " ")
    before, user, after = text.partition("\nUSER 10001:10001\n")
    assert user
    assert not re.search(r"(?m)^(USER|ADD)", before)
    assert not re.search(r"(?m)^(USER|FROM|RUN|COPY|ADD)", after)
    assert not re.search(r"@sha256:[0-9a-f]", text)  # no made-up digest
    installs = [line.strip() for line in re.findall(r"pip install ([^&\n]*)", text)]
    unhashed = [line for line in installs if "--require-hashes --no-deps" not in line]
    assert unhashed == ["--no-deps --no-index --no-build-isolation ./copy"]
    copied = [word for words in re.findall(r"(?m)^COPY (?!--from)(.*) \S+$", text) for word in words.split()]
    first, *sent = re.findall(r"(?m)^[^#\n].*", (ROOT / ".dockerignore").read_text())
    assert first == "*"
    assert {line[1:] for line in sent if line.startswith("!")} == {name.split("/")[0] for name in copied}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_may_do_nothing_that_it_does_not_need(name):
    service = SERVICES[name]
    needed = {"user": "10001:10001", "read_only": True, "cap_drop": ["ALL"], "ulimits": {"core": 0}}
    assert service == service | needed | {"security_opt": ["no-new-privileges:true"]}
    assert {"privileged", "cap_add", "pid", "ipc", "devices"}.isdisjoint(service)
    assert re.fullmatch(r"\$\{\w+:-\w+:[\d.]+\}", service["image"])
    assert all(volume.endswith(":ro") or volume in VOLUMES for volume in service["volumes"])
    assert all(place.endswith(":uid=10001,gid=10001,mode=0700") for place in service["tmpfs"])


def words_of(command):
    """Return the words after the one that starts our process, without the folder in which a unit finds programs."""
    words = [
        re.sub(r"\$\{(\w+)\}", r"$\1", word.removeprefix("/opt/fedmf/.venv/bin/"))
        for word in shlex.split(command)
    ]
    assert words[:3] == ["python", "-m", "experiments.deployment.warm"]
    return words[3:]


@pytest.mark.parametrize(("text", "service", "command"), STARTED, ids=UNITS)
def test_a_service_starts_what_its_unit_starts_and_has_its_time_to_stop(text, service, command):
    """Without the key an engine kills after 10 seconds, while the command still waits for its processes."""
    assert words_of(command) == words_of(re.search(r"(?m)^ExecStart=(.*)", text.replace("\\\n", ""))[1])
    given = service["stop_grace_period"].removesuffix("s")
    assert given == value_of(text, "TimeoutStopSec").removesuffix("s")
    assert int(given) > GRACE + 5


def test_units_leave_nothing_to_others_and_count_released_rounds_outside_the_folder_of_the_runs():
    """A restore sets the folder of the runs and of the account's home back together; the count must stay."""
    for text in TEXTS.values():
        assert {"UMask=0077", "ProtectProc=invisible", "LimitCORE=0"} <= set(text.splitlines())
        assert value_of(text, "FLWR_HOME").startswith("/run/")
    state = value_of(TEXTS[UNITS[0]], "FEDMF_STATE")
    home, *others = value_of(TEXTS[UNITS[0]], "StateDirectory").split()
    assert state in {f"/var/lib/{name}" for name in others}
    assert f"WorkingDirectory=/var/lib/{home}\n" in TEXTS[UNITS[0]]
    assert SERVER["environment"]["FEDMF_STATE"] == state == VOLUMES[1].partition(":")[2]
    (check,) = re.findall(r"(?m)^ExecStartPre=-/opt/fedmf/.venv/bin/(.*)", TEXTS[UNITS[1]])
    assert NODE["command"][2].startswith(f"{check.replace('$', '$$')}; exec ")  # whatever it finds
