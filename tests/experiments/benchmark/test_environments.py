"""Environments of other systems: made once, kept while their pins are the same, never left broken, offline said so."""

import json
import subprocess
import zipfile
from pathlib import Path

import pytest

import fedmf
from benchmark_runs import run_benchmark
from experiments.benchmark import environments
from experiments.benchmark.environments import clean_environment, pins, ready_python
from fedmf.errors import SettingError


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch, tmp_path):
    """No index of packages, as on a machine without a connection."""
    monkeypatch.setenv("FEDMF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))


def wheel(folder, version):
    """Write a package called `othersystem`, and return the path of its wheel."""
    path = folder / f"othersystem-{version}-py3-none-any.whl"
    info = f"othersystem-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("othersystem.py", f"VERSION = '{version}'\n")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: othersystem\nVersion: {version}\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")
    return path


def installed(python):
    """Return what the interpreter imports as `othersystem`, and whether it sees our packages."""
    code = "import othersystem, importlib.util as u; print(othersystem.VERSION, u.find_spec('fedmf'))"
    elsewhere = {"cwd": python.parent, "env": clean_environment({})}
    return subprocess.run([python, "-c", code], **elsewhere, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_an_environment_holds_its_pins_and_not_our_packages(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(fedmf.__file__).parents[1]))
    wheel(tmp_path, "1.0")
    said = []
    python = ready_python("other", ("othersystem==1.0",), said.append)
    assert installed(python) == "1.0 None\n"
    assert said[0].startswith("other: making its environment in ")
    assert any("Installing collected packages: othersystem" in line for line in said)


def test_an_environment_is_used_again_while_its_pins_are_the_same(monkeypatch):
    made = []

    def make(name, home, python, pinned, say):
        made.append(pinned)
        python.parent.mkdir(parents=True)
        python.touch()
        (home / "pins.json").write_text(json.dumps(environments._wanted(pinned)))

    monkeypatch.setattr(environments, "_make", make)
    for version in ("1.0", "1.0", "2.0", "2.0"):
        ready_python("other", (f"othersystem=={version}",), lambda line: None)
    assert made == [("othersystem==1.0",), ("othersystem==2.0",)]


@pytest.mark.parametrize("broken", ["no mark", "no interpreter", "another python"])
def test_an_environment_that_is_not_whole_is_made_anew(broken, monkeypatch, tmp_path):
    home = tmp_path / "cache" / "benchmark" / "other"
    (home / "bin").mkdir(parents=True)
    (home / "left_behind").touch()
    with monkeypatch.context() as earlier:
        if broken == "another python":
            earlier.setattr("sys.version_info", (3, 0, 0))
        contents = environments._wanted(("a==1",))
    if broken != "no mark":
        (home / "pins.json").write_text(json.dumps(contents))
    if broken != "no interpreter":
        (home / "bin" / "python").touch()
    made = []
    monkeypatch.setattr(environments, "_make", lambda *which: made.append(which[1].exists()))
    ready_python("other", ("a==1",), lambda line: None)
    assert made == [False]  # nothing of the old one is left


@pytest.mark.slow
def test_offline_the_command_exits_2_with_a_sentence_and_leaves_nothing(capsys, tmp_path):
    code, out, err = run_benchmark(capsys, "compare=[pfl]")
    assert (code, out) == (2, "")
    assert "error: compare is pfl, whose environment could not be made" in err
    assert f"No matching distribution found for {pins()['pfl'][1]}" in err
    assert "with a connection to a package index, run the command again" in err
    assert [path.name for path in (tmp_path / "cache" / "benchmark").iterdir()] == ["pfl.lock"]


def test_an_interrupted_installation_leaves_nothing(monkeypatch, tmp_path):
    def interrupted(name, home, *rest):
        home.mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(environments, "_make", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ready_python("other", (), lambda line: None)
    assert not (tmp_path / "cache" / "benchmark" / "other").exists()


def test_other_systems_get_the_torch_and_the_flower_that_we_run_on():
    import flwr
    import torch

    assert pins()["pfl"] == ("pfl[pytorch]==0.6.0", f"torch=={torch.__version__.partition('+')[0]}")
    assert pins()["flower"][0] == f"flwr[simulation]=={flwr.__version__}"


def test_a_failed_step_is_an_error_of_the_setting():
    with pytest.raises(SettingError, match="ended with code 3 and said: no"):
        environments._call("x", ["python3", "-c", "print('no'); raise SystemExit(3)"], lambda line: None)
