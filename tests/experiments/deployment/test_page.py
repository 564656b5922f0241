"""docs/deployment.md: its commands, files and units are run as they stand, with other folders and ports."""

import json
import os
import re
import shlex
import shutil
import subprocess

import numpy as np
import pytest
import yaml

from client.data import load
from experiments.deployment.loopback import APP, BIN, WARM, Loopback, free_port
from experiments.run_files.reader import is_finished
from nodes import released, wait_for
from runs import metrics

PAGE = (APP / "docs" / "deployment.md").read_text()
BLOCKS = re.findall(r"(?ms)^```(\w+)\n(.*?)^```$", PAGE)
# What only root may type, and the machine's own nginx: how the lines begin.
UNTRIED = ("# useradd", "# install", "# cp", "# nft", "# systemctl", "# journalctl", "# nginx")
LIMIT = 300


def commands(*beginnings):
    """Return the lines of the page's shell blocks that begin so, in order."""
    lines = [line for language, text in BLOCKS if language == "sh" for line in text.splitlines()]
    return [line for line in lines if line.startswith(beginnings)]


def block(language):
    (text,) = (text for kind, text in BLOCKS if kind == language)
    return text


def unit(name):
    """Return the text of a unit with lines that go on made one."""
    return (APP / "docs" / "systemd" / f"{name}.service").read_text().replace("\\\n", "")


def line_of(text, key):
    """Return the command of a unit's line, split as systemd does it: what $NAME alone stands for becomes several words."""
    (line,) = re.findall(rf"(?m)^{key}=-?(.*)$", text)
    values = dict(re.findall(r'(?m)^Environment="?(FEDMF_\w+)=([^"\n]*)"?$', text))
    words = []
    for word in shlex.split(line):
        if word.startswith("$") and word[1:] in values:
            words += values[word[1:]].split()
        else:
            words.append(re.sub(r"\$\{(\w+)\}", lambda found: values[found[1]], word))
    return words


def test_every_command_of_the_page_is_run_or_roots():
    run = ("openssl", "ssh-keygen", "fedmf node_check", "flwr", "RUN=", "export", "tail", "python -c", "grep")
    assert [line for line in commands("") if not line.startswith((*UNTRIED, *run))] == []
    assert all(commands(beginning) for beginning in UNTRIED)


class Site(Loopback):
    """A server and a node as the page and the units have them, below a folder in place of the machine's own."""

    def __init__(self):
        super().__init__()
        for name in ("etc", "srv", "lib", "counter", "run", "run-node"):
            (self.folder / name).mkdir(mode=0o700)
        self.places = {
            "/etc/fedmf": f"{self.folder}/etc",
            "/srv/fedmf": f"{self.folder}/srv",
            "/var/lib/fedmf-counter": f"{self.folder}/counter",
            "/var/lib/fedmf": f"{self.folder}/lib",
            "/run/fedmf-node": f"{self.folder}/run-node",
            "/run/fedmf": f"{self.folder}/run",
            "/opt/fedmf/.venv/bin": str(BIN),
            "/opt/fedmf": str(APP),
            "127.0.0.1:8000": f"127.0.0.1:{self.port}",
            "--port 8000": f"--port {self.port}",
            "--port 9094": f"--port {free_port()}",
            "fedmf.example.org:8443": f"127.0.0.1:{self.port}",
        }
        self.authority = self.folder / "etc" / "ca.crt"

    def here(self, text):
        for theirs, ours in self.places.items():
            text = text.replace(theirs, ours)
        return text

    def shell(self, *lines, folder="etc"):
        """Return what the lines print, typed one after the other in a folder."""
        environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
        text = "\n".join(map(self.here, lines))
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", text], cwd=self.folder / folder, env=environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start_unit(self, name, text):
        """Start what a unit starts, under its environment, and ended with this process too."""
        words = shlex.split(self.here(shlex.join(line_of(text, "ExecStart"))))
        assert words[1:3] == ["-m", "experiments.deployment.warm"]
        self.start(name, [*WARM, *words[3:]])

    def environment(self, name):
        return {**super().environment(name), "FEDMF_STATE": f"{self.folder}/counter"}


def write_clients(file, first, end):
    """Write the digits clients first .. end - 1 as a by_user_npz file, with one test image as it must have."""
    dataset = load("digits")
    own = dataset.clients[first:end]
    x = np.concatenate([*(examples.x for examples in own), dataset.test.x[:1]])
    y = np.concatenate([*(examples.y for examples in own), dataset.test.y[:1]])
    split = (np.arange(len(y)) == len(own)).astype(np.int64)
    np.savez(file, x=x, y=y, user=np.arange(len(y)), split=split)


@pytest.mark.slow
@pytest.mark.deployment
@pytest.mark.skipif(
    not shutil.which("openssl") or not shutil.which("ssh-keygen"), reason="openssl, ssh-keygen"
)
def test_a_run_as_the_page_and_the_units_have_it():
    with Site() as site:
        write_clients(site.folder / "srv" / "people.npz", 0, 479)
        write_clients(site.folder / "srv" / "public.npz", 0, 5)
        server, node, *_ = [
            text for kind, text in BLOCKS if kind == "sh" and text.startswith(("openssl", "ssh-keygen -q"))
        ]
        server_key = site.shell(*server.splitlines()).split()[-1]
        box_key = site.shell(*node.splitlines()).split()[-1]

        superlink, supernode = unit("fedmf-superlink"), unit("fedmf-supernode")
        supernode = re.sub(r"FEDMF_SERVER_BOX_KEY=\S+", f"FEDMF_SERVER_BOX_KEY={server_key}", supernode)
        site.start_unit("superlink", superlink)
        site.wait_for_port("superlink", site.port)
        assert site.shell(*commands("fedmf node_check")).count("479") >= 1
        check = site.here(shlex.join(line_of(supernode, "ExecStartPre")))
        assert "This node is ready." in site.shell(check)

        (site.folder / "lib" / "flwr").mkdir()
        (site.folder / "lib" / "flwr" / "config.toml").write_text(site.here(block("toml")))
        document = yaml.safe_load(site.here(block("yaml")))
        public = (site.folder / "etc" / "node.pub").read_text()
        document["nodes"][0] |= {"public_key": public, "box_key": box_key}
        listed = site.folder / "lib" / "nodes.yaml"
        listed.write_text(yaml.safe_dump(document))
        listed.chmod(0o600)
        exported = commands("export")
        said = site.shell(*exported, *commands("ssh-keygen -lf", "flwr supernode"))
        assert "registered" in said
        site.start_unit("node", supernode)

        run = commands("RUN=")
        submit, *_, resume = commands("flwr run")
        started = site.shell(*exported, *run, submit)
        (number,) = re.findall(r"run (\d{6,})", started)
        directory = site.folder / "lib" / "runs" / "1"
        wait_for(lambda: released(directory) >= 2, site, limit=LIMIT)
        before_a_restore = site.shell(*commands("tail", "python -c", "grep")).splitlines()
        row, run_id, *counted = before_a_restore
        (count,) = (line for line in counted if run_id.split('"')[3] in line)  # the node's own lie there too
        assert 2 <= json.loads(row)["round"] <= int(count.partition(":")[2])
        wait_for(lambda: is_finished(directory), site, limit=LIMIT)
        (log,) = commands("flwr log")
        said = site.shell(*exported, log.replace("RUN_ID", number))
        assert "node hospital-1 takes part with 479 clients" in said
        assert "not sealed" not in said
        assert [row["replies"] for row in metrics(directory)] == [64] * 14
        site.shell(*exported, *run, resume)  # of a run that has finished
        (stop,) = commands("flwr stop")
        assert number not in stop
