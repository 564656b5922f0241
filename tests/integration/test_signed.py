"""Signed files as docs/deployment.md makes them, and what a node that wants signed apps does."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from experiments.deployment.loopback import BIN, Loopback
from nodes import wait_for

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "deployment.md").read_text()
needs_ssh_keygen = pytest.mark.skipif(
    not shutil.which("ssh-keygen"),
    reason="ssh-keygen, which makes and checks the signatures, is a system package (openssh-client)",
)
CYCLONEDX = shutil.which(
    "cyclonedx-py", path=f"{ROOT / '.venv-release' / 'bin'}:{os.environ.get('PATH', '')}"
)


def commands(first):
    """Return the block of commands on the page that begins with `first`."""
    (block,) = [
        text for text in re.findall(r"(?:^    .*\n)+", PAGE, re.MULTILINE) if text.strip().startswith(first)
    ]
    return re.sub(r"(?m)^    ", "", block)


def shell(text, folder, *, check=True):
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "FLWR_HOME": str(folder / "home")}
    environment |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "PIP_NO_INDEX": "1"}
    done = subprocess.run(
        ["bash", "-e", "-c", text], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done.returncode


@pytest.mark.slow
@needs_ssh_keygen
def test_signed_files_are_made_and_checked_as_the_page_says(tmp_path):
    unused = shutil.ignore_patterns(".*", "__pycache__", "tests", "runs", "*.egg-info")
    release = shutil.copytree(ROOT, tmp_path / "release", ignore=unused)
    shell(commands("ssh-keygen -t").replace("ssh-keygen -t", "ssh-keygen -q -N '' -t"), release)
    shell(commands("pip wheel"), release)
    assert sorted(path.suffix for path in (release / "dist").iterdir()) == [".fab", ".sig", ".sig", ".whl"]
    shell(commands("for file in"), release)
    for suffix in (".fab", ".whl"):
        (file,) = (release / "dist").glob(f"*{suffix}")
        whole = file.read_bytes()
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        assert shell(commands("for file in"), release, check=False) != 0
        file.write_bytes(whole)
    (fab,) = (release / "dist").glob("*.fab")
    again = fab.read_bytes()
    shell("flwr build", release)
    assert (release / fab.name).read_bytes() == again


@pytest.mark.slow
@pytest.mark.deployment
@needs_ssh_keygen
def test_a_node_that_wants_signed_apps_refuses_one_that_is_submitted_from_a_folder():
    """The day Flower brings signatures without its hub, this fails, and the page must change."""
    data = "dataset=synthetic dataset.clients=4 dataset.features=5 dataset.classes=3"
    with Loopback() as loopback:
        loopback.start_superlink()
        loopback.register("a")
        made = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", loopback.folder / "release")
        subprocess.run(made, check=True)
        trusted = loopback.folder / "trusted.yaml"
        trusted.write_text(f"fpk_release: '{(loopback.folder / 'release.pub').read_text().strip()}'\n")
        loopback.start_supernode("a", f"clients=4 {data}", "--trusted-entities", trusted)
        directory = loopback.folder / "run.directory"
        loopback.submit(
            f"run.directory={directory} {data} population.min_available=4 population.cohort_size=2"
        )
        wait_for(lambda: "could not be verified" in loopback.tail("a"), loopback)
        assert not (directory / "metrics.jsonl").exists()


@pytest.mark.slow
@pytest.mark.skipif(CYCLONEDX is None, reason="cyclonedx-py is not installed; `make sbom` installs it")
def test_the_list_of_packages_holds_every_one_that_is_installed(tmp_path):
    (line,) = re.findall(r"/bin/cyclonedx-py (environment.*)\n", (ROOT / "Makefile").read_text())
    words = line.replace("dist/sbom.cdx.json", f"{tmp_path}/sbom.json").replace(
        "$(BIN)/python", sys.executable
    )
    subprocess.run([CYCLONEDX, *words.split()], check=True, capture_output=True)
    document = json.loads((tmp_path / "sbom.json").read_text())
    listed = {(part["name"].lower(), part["version"]) for part in document["components"]}
    here = {(found.metadata["Name"].lower(), found.version) for found in distributions()}
    assert {name for name in here if name not in listed} <= {pair for pair in here if pair[0] == "fedmf"}
