"""The operator's and the hospital's page and the runbook: every command is copied from them and run, or listed here as untried."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from deployments import released
from experiments.deploy_demo import write_clients
from experiments.deployment.loopback import APP, BIN, free_port
from experiments.run_files.reader import is_finished
from experiments.settings.engine import DeploymentSettings
from runs import metrics
from server.cohort import UnreadyNodes
from server.gathering import Attendance

DOCS = APP / "docs"
PAGES = ("operator", "hospital", "runbook")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LIMIT = 300  # seconds: nothing takes so long, it only ends a test that hangs

# Commands that no test runs, by how they begin, and why.
UNTRIED = {
    "# useradd": "needs root and makes an account of the machine",
    "# install -d": "the account does not exist here: the test makes these folders",
    "# install -o fedmf": "the account does not exist here: the test copies this file",
    "# install -m 0644 fedmf-proxy.conf": "the machine's own nginx; tests/experiments/deployment/test_proxy.py runs one with this file",
    "# nginx -t": "the machine's own nginx",
    "# sudo -u fedmf": "the account does not exist here",
    "# chown": "the account does not exist here",
    "# cp /opt/fedmf/docs/systemd": "the machine's own units and rules; tests/experiments/deployment/test_units.py reads them",
    "# sed": "the machine's own rules; tests/experiments/deployment/test_units.py applies it to the file",
    "# nft": "the machine's own rules; tests/experiments/deployment/test_units.py runs them in a network of its own",
    "# systemctl": "the machine's own services; what the units start is run",
    "# journalctl": "there is no service whose log it could show",
}
BACKGROUND = {"fedmf server config=/etc/fedmf/server.yaml", "fedmf node config=/etc/fedmf/node.yaml"}


def text_of(page):
    return (DOCS / f"{page}.md").read_text()


def sections(page):
    """Return {heading: its blocks, each as (language, text)} of a page, in order."""
    parts = re.split(r"^## (.+)$", text_of(page), flags=re.MULTILINE)
    return {name: BLOCK.findall(text) for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def commands(block):
    """Return the commands of a block, one for each line; lines that end in a backslash go on."""
    return [line for line in block.replace("\\\n", "").splitlines() if line]


def all_commands():
    return [
        line
        for page in PAGES
        for blocks in sections(page).values()
        for language, text in blocks
        if language == "sh"
        for line in commands(text)
    ]


def reason(line):
    return next((why for beginning, why in UNTRIED.items() if line.startswith(beginning)), None)


def test_what_is_untried_is_roots_and_stands_on_a_page_and_all_else_is_run():
    for line in all_commands():
        assert line.startswith("# ") or reason(line) is None, line
    for beginning in (*UNTRIED, *BACKGROUND):
        assert any(line.startswith(beginning) for line in all_commands()), beginning


def test_what_only_root_may_do_is_marked_so():
    """Nobody else reads /root, or changes what lies in /etc/fedmf, which is root's."""
    for line in all_commands():
        changes = re.search(r"\b(install|rm|cp|mv|ssh-keygen -q)\b.* /etc/fedmf", line)
        if changes or "/root/" in line:
            assert line.startswith("# "), line
            # root's shell lacks the PATH of the account's
            assert not line.startswith("# fedmf "), line


def test_every_block_of_a_page_is_one_that_is_run_or_written():
    for page in PAGES:
        fences = text_of(page).count("\n```")
        assert fences == 2 * len(BLOCK.findall(text_of(page)))
        for blocks in sections(page).values():
            assert {language for language, _ in blocks} <= {"sh", "yaml", "toml"}
        assert not re.search(r"(?m)^(    |\t)\S", re.sub(BLOCK, "", text_of(page))), "an indented block"


def test_the_runbook_has_a_paragraph_for_each_fault_that_says_what_is_lost():
    faults = re.split(r"^## (.+)$", text_of("runbook"), flags=re.MULTILINE)[1:]
    titles = {title.lower() for title in faults[::2]}
    assert titles >= {
        "node killed", "node frozen", "node cut off", "slow node", "node's data unreadable", "node unregistered",
        "clock off", "old session online", "wrong authority", "certificate expired", "superlink killed",
        "superlink's database lost", "server app killed", "disk full", "other code on a node",
        "other version at a resume", "leaked key", "proxy refuses size", "too few clients", "node not ready", "task hangs",
        "node out of the epoch",
    }  # fmt: skip
    for title, text in zip(faults[::2], faults[1::2], strict=True):
        assert "Lost: nothing" in text, title


def test_the_pages_say_what_happens_to_a_node_that_is_not_ready():
    """As it is: by default no epoch begins without it, and the run stops; the server's own words stand on the page."""
    _, _, text = text_of("runbook").partition("## Node not ready\n")
    paragraph = " ".join(text.partition("\n## ")[0].split())
    assert (
        f"after `engine.node_timeout` ({DeploymentSettings(name='deployment').node_timeout:g} s) the run stops"
        in paragraph
    )
    assert Attendance(1).unready is UnreadyNodes.wait
    assert "By default (`population.unready_nodes=wait`) no epoch begins without it" in paragraph
    assert "population.unready_nodes=without" in paragraph
    for said in ("is not ready: the epoch begins without it", "not ready: "):
        assert said in paragraph
        assert any(said in (APP / f"server/{name}.py").read_text() for name in ("gathering", "roll_call"))
    for page in ("operator", "hospital"):
        assert "not ready" in text_of(page)


def test_the_runbook_has_the_servers_words_for_each_reason_why_a_node_is_not_in_an_epoch():
    _, _, text = text_of("runbook").partition("## Node out of the epoch\n")
    paragraph = " ".join(text.partition("\n## ")[0].split())
    said = re.findall(r'"node %s ([^:"]+): the epoch begins', (APP / "server/roll_call.py").read_text())
    assert len(said) == 5
    assert all(f'"{words}"' in paragraph for words in said)


def file_of(page, heading):
    """Return the settings in a YAML block of a page."""
    (text,) = (text for language, text in sections(page)[heading] if language == "yaml")
    return yaml.safe_load(text)


def test_the_files_on_the_pages_hold_what_the_units_have():
    shipped = yaml.safe_load((DOCS / "systemd/server.yaml").read_text())
    on_page = file_of("operator", "The server")
    assert on_page == {**shipped, "home": on_page["home"]}
    unit = (DOCS / "systemd/fedmf-supernode.service").read_text().replace("\\\n", "")
    words = re.search(r"(?m)^ExecStart=\S+ node (.*) \$FEDMF_DATA$", unit)[1].split()
    words += re.search(r'"FEDMF_DATA=(.*)"', unit)[1].split()
    on_page = {f"{key}={value}" for key, value in file_of("hospital", "The settings").items()}
    assert on_page == set(words)


def headings(page):
    """Return the headings of a page as links call them."""
    found = re.findall(r"(?m)^#+ (.+)$", re.sub(BLOCK, "", text_of(page)))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", [*PAGES, "deployment"])
def test_links_to_a_heading_lead_to_one(page):
    links = re.findall(r"\]\((?:(\w+)\.md)?#([\w-]+)\)", text_of(page))
    for target, anchor in links:
        by_hand = set(re.findall(r'<a id="([\w-]+)">', text_of(target or page)))
        assert anchor in headings(target or page) | by_hand, (target, anchor)


class Host:
    """One machine of the pages: its folders below a folder, its commands as they are written but for `table`."""

    def __init__(self, folder, table):
        self.folder, self.settings, self.started = folder, [], {}
        below = {
            path: f"{folder}{path}"
            for path in ("/etc/fedmf", "/var/lib/fedmf", "/run/fedmf", "/srv/fedmf", "/root")
        }
        # All that is exchanged: paths of the machine, the code's, and what `table` adds (hosts, ports, ids).
        self.table = {**below, "/opt/fedmf/.venv/bin": str(BIN), "/opt/fedmf": str(APP), **table}
        for path in below.values():
            Path(path).mkdir(parents=True)
            Path(path).chmod(0o700)

    def here(self, text):
        """Return a text of a page as it is for this machine."""
        names = sorted(self.table, key=len, reverse=True)
        return re.sub("|".join(map(re.escape, names)), lambda found: self.table[found[0]], text)

    def follow(self, page, heading, *, only=None):
        """Write the files and run the commands of a section, all or those that begin with `only`; return what they print."""
        printed = []
        for language, text in sections(page)[heading]:
            if language == "sh":
                for line in commands(text):
                    if reason(line) is None and (only is None or line.startswith(only)):
                        printed.append(self.run(line))
            elif only is None:
                name, _, content = text.partition("\n")
                file = Path(self.here(name.removeprefix("# ")))
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(self.here(content))
        return "\n".join(printed)

    def run(self, line):
        """Run one command, of root's too, and return what it prints; one of `BACKGROUND` is started and goes on."""
        line = line.removeprefix("# ")
        if re.match(r"[A-Z]+=|export ", line):
            self.settings.append(self.here(line))
            return ""
        script = "\n".join([*self.settings, ("exec " if line in BACKGROUND else "") + self.here(line)])
        command = ["bash", "-euo", "pipefail", "-c", script]
        environment = {**os.environ, "PYTHONPATH": str(APP)}
        cwd = self.folder / "var/lib/fedmf"
        if line in BACKGROUND:
            with (self.folder / "log").open("ab") as log:
                self.started[line] = subprocess.Popen(
                    command,
                    cwd=cwd,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    umask=0o077,
                )
            return ""
        done = subprocess.run(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def log(self):
        return (self.folder / "log").read_text()

    def stop(self):
        """End what is running, and return with which codes it ended."""
        for process in self.started.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        codes = [process.wait(60) for process in self.started.values()]
        self.started = {}
        return codes


def wait_for(happened, *hosts):
    deadline = time.monotonic() + LIMIT
    while not happened():
        for host in hosts:
            for line, process in host.started.items():
                assert process.poll() is None, f"{line} ended\n{host.log()[-5000:]}"
        assert time.monotonic() < deadline, "\n".join(host.log()[-5000:] for host in hosts)
        time.sleep(0.1)


def online(server):
    """The ids of the nodes that Flower shows as online."""
    listed = json.loads(server.run("flwr supernode list site --format json"))["nodes"]
    return {node["node-id"] for node in listed if node["status"] == "online"}


@pytest.fixture
def hosts(tmp_path):
    """The server, and two nodes: hospital-1 as the pages have it, and hospital-2 with fewer clients."""
    server_port = str(free_port())
    server = Host(tmp_path / "server", {"127.0.0.1:8000": f"127.0.0.1:{server_port}"})
    # Straight to the SuperLink: the proxy between them has tests of its own.
    reached = {"superlink: fedmf.example.org:8443": f"superlink: localhost:{server_port}"}
    node = Host(tmp_path / "node", {**reached, "9094": str(free_port())})
    other = Host(tmp_path / "other", {**reached, "9094": str(free_port()), "clients: 479": "clients: 20"})
    try:
        yield server, node, other
    finally:
        for host in (node, other, server):
            host.stop()


def join(server, node, number):
    """Let a node begin as the pages say, up to its start; its public half comes to the server."""
    node.follow("hospital", "The host, the account, the folders")
    assert "ECDSA" in node.follow("hospital", "The key")
    # What the two send each other.
    shutil.copy(server.folder / "etc/fedmf/ca.crt", node.folder / "etc/fedmf/ca.crt")
    shutil.copy(node.folder / "etc/fedmf/node.pub", server.folder / f"var/lib/fedmf/hospital-{number}.pub")
    node.follow("hospital", "The settings")


@pytest.mark.deployment
def test_from_nothing_to_a_finished_run_as_the_pages_say(hosts):
    server, node, other = hosts
    state = server.folder / "var/lib/fedmf"
    write_clients(node.folder / "srv/fedmf/people.npz", 0, 479)
    write_clients(other.folder / "srv/fedmf/people.npz", 0, 20)
    write_clients(server.folder / "srv/fedmf/public.npz", 479, 480)

    server.follow("operator", "The host, the account, the folders")
    said = server.follow("operator", "Certificates")
    # What root installs for the account, which does not exist here.
    shutil.copy(server.folder / "root/fedmf-authority/server.key", server.folder / "etc/fedmf/server.key")
    assert "days left" in said
    server.follow("operator", "The proxy")
    assert "client_max_body_size" in (state / "fedmf-proxy.conf").read_text()
    server.follow("operator", "The server")

    join(server, node, 1)
    join(server, other, 2)
    node.follow("hospital", "Check")

    wait_for(lambda: listens(server), server)
    said = server.follow("operator", "Nodes")
    assert "hospital-1" in said
    server.run("flwr supernode register hospital-2.pub site --name hospital-2")
    server.run(adds_a_node().replace("hospital-1", "hospital-2").replace("479", "20"))
    for host in (node, other):
        host.follow("hospital", "Start")
    wait_for(lambda: len(online(server)) == 2, server, node, other)

    said = server.follow("operator", "A run")
    directory = state / "runs/1"
    server.table["RUN_ID"] = re.search(r"run (\d+)", said)[1]
    wait_for(lambda: released(directory) > 1, server, node)
    assert "node hospital-1 takes part with 479 clients" in server.follow("operator", "Watch")
    server.follow("runbook", "Disk full")
    server.follow("runbook", "Too few clients")
    counted = server.follow("operator", "Backup and restore")
    assert re.search(r'"run": "(\w{32})"\s+\S+/fedmf-counter/\1:\d+\n', counted), counted

    server.follow("operator", "Stop and go on", only="flwr")
    wait_for(lambda: is_finished(directory), server, node)
    assert "epsilon" in server.follow("operator", "Stop and go on", only=("fedmf", "cat"))
    rounds = [row["round"] for row in metrics(directory)]
    assert rounds == list(range(1, len(rounds) + 1))

    server.follow("operator", "Renew certificates")
    server.follow("runbook", "Wrong authority")
    server.follow("runbook", "Proxy refuses size")
    # Which id is whose, of two nodes: by name in the run's log, and by the key that the list shows.
    said = server.follow("runbook", "Leaked key", only="flwr log")
    keys = re.search(
        r"node hospital-1 takes part with 479 clients; its key is (\w+), its node id (\d+)", said
    )
    shown = json.loads(server.run("fedmf nodes file=/var/lib/fedmf/nodes.json output=json"))["nodes"]
    assert keys[1] == {node["name"]: node["key"] for node in shown}["hospital-1"]
    before = online(server)
    assert len(before) == 2
    assert f"SuperNode ID: {keys[2]}" in node.log()
    server.table["NODE_ID"] = keys[2]
    server.follow("runbook", "Leaked key")
    assert online(server) == before - {keys[2]}
    assert other.stop() == [130]
    assert "This node's data load" in node.follow("runbook", "Node not ready")
    # The hospital leaves, and comes back with a new key: Flower takes none again that was unregistered.
    assert node.stop() == [130]
    node.follow("hospital", "Leave")
    node.follow("hospital", "The key")
    shutil.copy(node.folder / "etc/fedmf/node.pub", state / "hospital-1.pub")
    server.follow("runbook", "Node unregistered")
    server.run(adds_a_node())
    assert server.stop() == [130]
    server.follow("operator", "End and wipe")
    assert not list((server.folder / "run/fedmf").glob("superlink.db*"))
    assert not list(directory.rglob("secrets*"))


def adds_a_node():
    """The command of the operator's page that takes a node up into the list."""
    return next(line for line in all_commands() if line.startswith("fedmf nodes") and "add=" in line)


def test_every_section_with_commands_is_followed():
    """Or the run above would leave out what a page says."""
    source = Path(__file__).read_text()
    for page in PAGES:
        for heading, blocks in sections(page).items():
            if blocks:
                assert f'follow("{page}", "{heading}"' in source, (page, heading)


def listens(host):
    import socket

    address, port = host.table["127.0.0.1:8000"].split(":")
    with socket.socket() as probe:
        return probe.connect_ex((address, int(port))) == 0
