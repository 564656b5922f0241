"""A run goes on with the code that played it so far, and its statement names whatever code played it."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest

from crashes import cut
from experiments.cli.command import guard
from experiments.run_files import provenance
from experiments.run_files.provenance import code_digest, own_code
from runs import run

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]
SMALL = (
    "population.cohort_size=6",
    "population.rounds_per_epoch=3",
    "population.epochs=2",
    "run.reproducible=true",
)


@pytest.fixture
def other_code(monkeypatch):
    monkeypatch.setattr(provenance, "code_digest", lambda checkout: "0123456789abcdef")


def contents(directory):
    return {file.relative_to(directory): file.read_bytes() for file in directory.rglob("*") if file.is_file()}


def told(directory):
    """What privacy.json says of each session: its first round and its code."""
    held = json.loads((directory / "privacy.json").read_text())["provenance"]
    return [(session["first_round"], session["code"]) for session in held]


def test_a_statement_names_the_code_of_every_session_and_other_code_is_refused(tmp_path, request, capsys):
    cut(tmp_path / "r", *SMALL, after=4)
    own = own_code()["code"]
    request.getfixturevalue("other_code")
    before = contents(tmp_path / "r")
    assert guard(lambda: run(tmp_path / "r", *SMALL, "run.resume=true")) == 2
    said = capsys.readouterr().err
    assert f"was played so far with code {own}, and this is code 0123456789abcdef" in said
    assert "run.allow_version_change=true" in said
    assert contents(tmp_path / "r") == before
    run(tmp_path / "r", *SMALL, "run.resume=true", "run.allow_version_change=true")
    assert told(tmp_path / "r") == [(1, own), (5, "0123456789abcdef")]


def test_a_run_that_was_stopped_names_the_code_of_every_session_that_released_a_round(tmp_path, request):
    """Also of one that released its rounds within an epoch that another had begun."""
    cut(tmp_path / "r", *SMALL, after=1)
    own = own_code()["code"]
    assert told(tmp_path / "r") == [(1, own)]
    request.getfixturevalue("other_code")
    cut(tmp_path / "r", *SMALL, "run.resume=true", "run.allow_version_change=true", after=2)
    assert told(tmp_path / "r") == [(1, own), (2, "0123456789abcdef")]


def test_a_statement_says_where_the_code_of_rounds_is_not_known(tmp_path):
    cut(tmp_path / "r", *SMALL, after=4)
    (tmp_path / "r" / "provenance.json").unlink()
    run(tmp_path / "r", *SMALL, "run.resume=true")
    assert told(tmp_path / "r") == [(1, None), (5, own_code()["code"])]


def test_an_extension_by_other_code_is_refused_and_leaves_everything_as_it_was(tmp_path, request, capsys):
    run(tmp_path / "r", *SMALL)
    own = own_code()["code"]
    before, more = contents(tmp_path / "r"), ("run.extend=1", "privacy.max_epsilon=20")
    request.getfixturevalue("other_code")
    assert guard(lambda: run(tmp_path / "r", *SMALL, *more)) == 2
    assert "run.allow_version_change=true" in capsys.readouterr().err
    assert contents(tmp_path / "r") == before
    run(tmp_path / "r", *SMALL, *more, "run.allow_version_change=true")
    assert told(tmp_path / "r") == [(1, own), (7, "0123456789abcdef")]


def test_the_image_is_named_where_the_environment_says_it(tmp_path, monkeypatch):
    monkeypatch.setenv(provenance.IMAGE, "sha256:abc")
    run(tmp_path / "r", *SMALL)
    (session,) = json.loads((tmp_path / "r" / "privacy.json").read_text())["provenance"]
    assert (session["image"], session["bundle"]) == ("sha256:abc", None)


def bundled(folder):
    """A copy of what Flower bundles of this checkout, in `folder`."""
    app = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    left_out = {file for pattern in app["fab-exclude"] for file in ROOT.glob(pattern)}
    included = {file for pattern in app["fab-include"] for file in ROOT.glob(pattern)}
    for file in included - left_out:
        (folder / file.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, folder / file.relative_to(ROOT))
    return folder


def test_the_digest_of_the_code_is_that_of_flowers_bundle_and_every_change_is_seen(tmp_path):
    digests = {code_digest(ROOT)}
    assert digests == {code_digest(bundled(tmp_path / "a"))}
    for name in ("fedmf/checks.py", "client/app.py", "conf/config.yaml"):
        file = bundled(tmp_path / name.replace("/", "_")) / name
        file.write_bytes(file.read_bytes() + b" ")
        digests.add(code_digest(tmp_path / name.replace("/", "_")))
    moved = bundled(tmp_path / "moved")
    (moved / "fedmf/checks.py").rename(moved / "fedmf/checked.py")
    digests.add(code_digest(moved))
    assert len(digests) == 5
