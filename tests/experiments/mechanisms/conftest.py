"""The mechanisms command as the tests of this folder call it: one cache for each file of tests."""

import json

import pytest

from experiments.cli import command
from experiments.mechanisms import __main__ as mechanisms
from experiments.mechanisms.designs import MechanismsSettings


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDMF_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def run(capsys):
    """A function of arguments that returns exit code, stdout and stderr of the command."""

    def call(*arguments):
        with pytest.raises(SystemExit) as stop:
            command.run(
                mechanisms.mechanisms, "mechanisms", MechanismsSettings, mechanisms.__doc__, arguments
            )
        captured = capsys.readouterr()
        return stop.value.code, captured.out, captured.err

    return call


@pytest.fixture
def rows(run):
    """A function of arguments that returns the JSON rows of the command by family."""

    def call(*arguments):
        code, out, err = run(*arguments, "output=json")
        assert code == 0, err
        return {row["family"]: row for row in json.loads(out)}

    return call
