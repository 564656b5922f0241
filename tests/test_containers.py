"""The image and the compose files: no root, nothing writable, no port but the proxy's, the commands of the units."""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from experiments.deployment.warm import GRACE

ROOT = Path(__file__).resolve().parents[1]
CONTAINERS = ROOT / "docs" / "containers"
SERVICES = {
    f"{file}:{name}": service
    for file in ("server", "node")
    for name, service in yaml.safe_load((CONTAINERS / f"{file}.yaml").read_text())["services"].items()
}
HADOLINT, DOCKER = shutil.which("hadolint"), shutil.which("docker")
TORCH = os.environ.get("FEDMF_TORCH")
VOLUMES = ("state:/var/lib/fedmf", "counter:/var/lib/fedmf-counter")
each_service = pytest.mark.parametrize("name", SERVICES)


def instructions():
    """Return the Dockerfile's instructions, each as its name and the rest."""
    text = re.sub(r"(?m)^#.*\n", "", (ROOT / "Dockerfile").read_text()).replace("\\\n", " ")
    return [
        (name, rest.strip()) for name, _, rest in (line.partition(" ") for line in text.splitlines() if line)
    ]


def of(wanted):
    return [rest for name, rest in instructions() if name == wanted]


def answers(*command):
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(HADOLINT is None, reason="hadolint is not installed")
def test_hadolint_finds_nothing():
    done = subprocess.run([HADOLINT, ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_does_not_run_as_root():
    names = [name for name, _ in instructions()]
    assert of("USER") == ["10001:10001"]
    assert names.index("USER") > len(names) - 1 - names[::-1].index("FROM")  # in the last stage
    after = names[names.index("USER") :]
    assert {"RUN", "COPY", "ADD"}.isdisjoint(after)


def test_the_base_has_a_version_and_no_made_up_digest():
    assert of("ARG") == ["BASE=python:3.12-slim-bookworm"]
    assert of("FROM") == ["${BASE} AS build", "${BASE}"]
    assert not re.search(r"@sha256:[0-9a-f]", (ROOT / "Dockerfile").read_text())
    for service in SERVICES.values():
        assert re.fullmatch(r"\$\{\w+:-\w+:[\d.]+\}", service["image"])


def test_every_package_is_installed_by_its_hash_or_from_the_source():
    installs = [line.strip() for line in re.findall(r"pip install ([^&]*)", " && ".join(of("RUN")))]
    assert len(installs) == 4
    assert [line for line in installs if "--require-hashes --no-deps" not in line] == [
        "--no-deps --no-index --no-build-isolation ./copy"
    ]
    assert "requirements/linux-x86_64-py3.12.txt packages.txt" in of("COPY")


def test_what_is_copied_is_there_and_nothing_else_is_sent():
    copied = [word for line in of("COPY") if not line.startswith("--from") for word in line.split()[:-1]]
    assert [name for name in copied if name != "torch.txt" and not (ROOT / name).exists()] == []
    first, *allowed = [
        line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")
    ]
    assert first == "*"
    assert {line[1:] for line in allowed if line.startswith("!")} == {name.split("/")[0] for name in copied}
    assert not of("ADD")


def test_the_health_check_says_whether_something_listens():
    (line,) = of("HEALTHCHECK")
    program = yaml.safe_load(line.partition("CMD ")[2])
    assert program[:2] == ["python", "-c"]
    with socket.create_server(("127.0.0.1", 0)) as listening:
        environment = {"FEDMF_PORT": str(listening.getsockname()[1])}
        assert subprocess.run([sys.executable, *program[1:]], env=environment, check=False).returncode == 0
    done = subprocess.run([sys.executable, *program[1:]], env=environment, capture_output=True, check=False)
    assert done.returncode == 1


@each_service
def test_a_service_may_do_nothing_that_it_does_not_need(name):
    service = SERVICES[name]
    assert service["user"] == "10001:10001"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["ulimits"] == {"core": 0}
    assert {"privileged", "cap_add", "pid", "ipc", "devices"}.isdisjoint(service)
    for volume in service["volumes"]:
        assert volume.endswith(":ro") or volume in VOLUMES
    for place in service["tmpfs"]:
        assert place.endswith(":uid=10001,gid=10001,mode=0700")


def test_only_the_port_of_the_proxy_is_published():
    assert {name: service.get("ports", []) for name, service in SERVICES.items()} == {
        "server:superlink": ["8443:8443"],
        "server:proxy": [],
        "node:node": [],
    }
    assert SERVICES["server:proxy"]["network_mode"] == "service:superlink"
    assert re.search(r"(?m)^    listen 8443 ssl;", (ROOT / "docs" / "nginx" / "fedmf-proxy.conf").read_text())


def unit(name):
    """Return the words of a unit's ExecStart."""
    text = (ROOT / "docs" / "systemd" / f"fedmf-{name}.service").read_text().replace("\\\n", "")
    return shlex.split(re.search(r"(?m)^ExecStart=(.*)", text)[1])


def started(command):
    """Return the words after the one that starts our process, without the folder in which a unit finds programs."""
    words = [word.removeprefix("/opt/fedmf/.venv/bin/") for word in command]
    assert words[:3] == ["python", "-m", "experiments.deployment.warm"]
    return words[3:]


def test_the_commands_are_those_of_the_units():
    assert started(shlex.split(SERVICES["server:superlink"]["command"])) == started(unit("superlink"))
    node = SERVICES["node:node"]
    shell, option, program = node["command"]
    assert (shell, option) == ("sh", "-c")
    check, _, start = program.replace("$$", "$").partition("; exec ")
    assert check == "fedmf node_check ready=/run/fedmf-node/ready $FEDMF_NODE"
    supernode = [re.sub(r"\$\{(\w+)\}", r"$\1", word) for word in unit("supernode")]
    assert started(shlex.split(start)) == started(supernode)
    text = (ROOT / "docs/systemd/fedmf-supernode.service").read_text()
    for name in ("FEDMF_NODE", "FEDMF_SERVER_BOX_KEY"):
        assert node["environment"][name] == re.search(rf'Environment="?{name}=([^"\n]*)', text)[1]
    assert node["environment"]["FEDMF_PORT"] == supernode[supernode.index("--port") + 1]


def seconds(text):
    """Return a duration of systemd or of Compose in seconds."""
    return int(re.fullmatch(r"(\d+)s?", text)[1])


@pytest.mark.parametrize(("service", "name"), [("server:superlink", "superlink"), ("node:node", "supernode")])
def test_a_container_has_the_time_to_stop_that_the_unit_gives(service, name):
    """Without the key an engine kills after 10 seconds, while the command still waits for its processes."""
    text = (ROOT / "docs" / "systemd" / f"fedmf-{name}.service").read_text()
    given = seconds(SERVICES[service]["stop_grace_period"])
    assert given == seconds(re.search(r"(?m)^TimeoutStopSec=(.*)", text)[1])
    assert given > GRACE + 5


def test_the_proxy_is_restarted_with_the_container_whose_network_it_shares():
    """As far as Compose does it: not where the engine starts a container again that has crashed."""
    proxy = SERVICES["server:proxy"]
    (shared,) = re.fullmatch(r"service:(\w+)", proxy["network_mode"]).groups()
    assert proxy["depends_on"][shared] == {"condition": "service_healthy", "restart": True}


def test_released_rounds_are_counted_in_a_volume_of_their_own():
    """A new volume takes owner and mode of the image's folder: the account may write there."""
    service = SERVICES["server:superlink"]
    assert [volume for volume in service["volumes"] if not volume.endswith(":ro")] == [*VOLUMES]
    state = service["environment"]["FEDMF_STATE"]
    assert state == VOLUMES[1].partition(":")[2]
    (made,) = re.findall(r"install -d -o fedmf -g fedmf -m 0700 (.*)", " ".join(of("RUN")))
    assert state in made.split()


@pytest.mark.skipif(
    not DOCKER or not answers(DOCKER, "compose", "version"), reason="docker compose is not installed"
)
@pytest.mark.parametrize("file", ["server", "node"])
def test_compose_reads_a_file(file):
    command = [DOCKER, "compose", "-f", CONTAINERS / f"{file}.yaml", "config", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.deployment
@pytest.mark.skipif(not DOCKER or not answers(DOCKER, "info"), reason="no container engine answers")
@pytest.mark.skipif(TORCH is None, reason="FEDMF_TORCH names no torch.txt")
def test_the_image_is_built_and_starts_without_root_and_without_writing(tmp_path):
    for name in ("Dockerfile", ".dockerignore", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("requirements", "fedmf", "server", "client", "experiments", "conf"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(str(TORCH), tmp_path / "torch.txt")
    subprocess.run([DOCKER, "build", "--tag", "fedmf:under-test", tmp_path], check=True)
    run = [DOCKER, "run", "--rm", "--read-only", "--cap-drop", "ALL", "--network", "none", "fedmf:under-test"]
    assert subprocess.check_output([*run, "id", "-u"], text=True).strip() == "10001"
    assert subprocess.check_output([*run, "fedmf", "--version"], text=True).startswith("fedmf ")
    assert not answers(*run, "touch", "/opt/fedmf/a")
    assert answers(*run, "python", "-m", "experiments.deployment.warm", "flower-superlink", "--help")
