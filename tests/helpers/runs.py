"""Runs simulations, inside the test process or as a user does, and ends them as a SIGKILL does: by an exception that nothing catches."""

import itertools
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hydra.core.global_hydra import GlobalHydra

from experiments.cli.command import guard
from experiments.session.resume import run_settings
from experiments.settings.compose import compose
from experiments.settings.reference import CONF
from experiments.settings.schema import Settings
from experiments.simulate import job, run as run_command
from server import record
from server.checkpoint import Checkpoint

ROOT = CONF.parent
SEARCH = f"{ROOT}:{ROOT / 'tests/helpers'}"  # where a process of its own finds our packages and these helpers
# Six rounds in two epochs.
SMALL = (
    "population.cohort_size=6",
    "population.rounds_per_epoch=3",
    "population.epochs=2",
    "run.reproducible=true",
)
# For processes with an environment of their own, which must not write into anyone's home either.
STATE = {"FEDMF_STATE": os.environ["FEDMF_STATE"]}


def composed(*overrides):
    return compose("config", overrides, Settings)


def simulate(settings):
    """Simulate into the directory of the settings, as the command does, and print the outcome."""
    job(settings, Path(settings.run.directory or "unnamed").resolve())


def run(directory, *overrides):
    """Simulate into `directory` and return it."""
    simulate(in_directory(directory, "output=json", *overrides))
    return directory


def again(directory, *overrides):
    """Simulate as the command does: a run that is resumed or extended by its own recorded settings."""
    simulate(run_settings([f"run.directory={directory}", *overrides]))


def refused(capsys, directory, *overrides, call=run):
    """Return what stderr says of a call that is a user's mistake, and changes no file of the directory."""
    before = contents(directory)
    capsys.readouterr()
    assert guard(lambda: call(directory, *overrides)) == 2
    assert contents(directory) == before
    return capsys.readouterr().err


def ended(capsys, call, *arguments):
    """Return exit code, stdout and stderr of a call that ends as a command does."""
    with pytest.raises(SystemExit) as end:
        call(*arguments)
    return end.value.code, *capsys.readouterr()


def in_directory(directory, *overrides):
    """Return the settings of a run in `directory`: those that tests repeat are composed once, for it takes Hydra .13 s.

    What names a file or a home is composed each time, but for data, which are read later, and so is what chooses a directory
    itself; the checks of the frozen settings are made each time.
    """
    others = [override for override in overrides if not override.startswith("dataset.path=/")]
    if any(mark in override for override in others for mark in ("/", "~", "run.directory", "hydra")):
        return composed(f"run.directory={directory}", *overrides)
    settings = _composed_once(overrides)
    return replace(settings, run=replace(settings.run, directory=str(directory)))


@cache
def _composed_once(overrides):
    return composed("run.directory=elsewhere", *overrides)


def typed(*arguments, cwd):
    """Simulate in this process as the command line asks for it, from Hydra's own start on, and return the exit code."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(GlobalHydra.instance(), "hydra", None)
        patched.chdir(cwd)
        patched.setenv("HYDRA_FULL_ERROR", "1")  # which the command sets, and leaves
        patched.setattr(sys, "argv", ["fedmf simulate", *arguments])
        return guard(run_command)


def command(*arguments, cwd, timeout=300, **options):
    """Simulate as a user does, and return the process that has ended."""
    return subprocess.run(
        [sys.executable, "-m", "experiments.simulate", *arguments],
        cwd=cwd,
        # No bytecode: what runs with a limit on file sizes would leave it cut off, for everybody after it.
        env={"PYTHONPATH": str(ROOT), "PATH": "", "PYTHONDONTWRITEBYTECODE": "1", **STATE},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        **options,
    )


def summary(directory):
    return json.loads((directory / "summary.json").read_text())


def statement(directory):
    return json.loads((directory / "privacy.json").read_text())


def metrics(directory):
    """Return the rows of metrics.jsonl less what a clock decides."""
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def model(directory, name="model.npz"):
    """Return a run's model as one vector."""
    with np.load(directory / name) as arrays:
        return np.concatenate([arrays[key].ravel() for key in arrays.files])


def contents(directory):
    """Return what each file of a directory holds, but for the lock of a run."""
    return {
        path: path.read_bytes() for path in directory.rglob("*") if path.is_file() and path.name != "lock"
    }


def assert_equal(directory, other):
    """Assert that two runs are the same in all but what a clock decides."""
    np.testing.assert_array_equal(model(directory), model(other), strict=True)
    assert metrics(directory) == metrics(other)
    assert summary(directory) | {"wall_seconds": 0} == summary(other) | {"wall_seconds": 0}


def page_section(page, heading):
    """Return the text of one section of a page below docs/."""
    return (ROOT / "docs" / page).read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


class Crash(BaseException):
    """What a SIGKILL is, inside one process."""


def crash_at(monkeypatch, call, after):
    """Make the `after`-th call of os.`call` from now on crash, before or after it took effect.

    A commit of the database, which SQLite forces to disk itself, counts as a call of fsync.
    """
    calls = itertools.count(1)

    def counted(real):
        def calling(*arguments, **options):
            number = next(calls)
            if number == after and number % 2:
                raise Crash
            result = real(*arguments, **options)
            if number == after:
                raise Crash
            return result

        return calling

    monkeypatch.setattr(os, call, counted(getattr(os, call)))
    if call == "fsync":
        monkeypatch.setattr(record, "commit", counted(record.commit))


def at_night(**calls):
    """Return the parameters (call, number) of further crashes, which are tried by `make test-slow` alone."""
    return [pytest.param(call, n, marks=pytest.mark.slow) for call, numbers in calls.items() for n in numbers]


def cut(directory, *overrides, after=4):
    """Leave a run that ended without warning after so many rounds; 0: before the first was released."""
    real, released = Checkpoint.commit, itertools.count(1)

    def commit(self, release):
        if next(released) > after:
            raise Crash
        real(self, release)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Checkpoint, "commit", commit)
        with pytest.raises(Crash):
            run(directory, *overrides)
    return directory


@contextmanager
def behind_round(owner, method, last, error=Crash):
    """For the block, make `owner.method` raise `error` once it has done its work for round `last`."""
    real = getattr(owner, method)

    def crashing(self, *arguments):
        result = real(self, *arguments)
        if any(getattr(argument, "round", None) == last for argument in arguments):
            raise error
        return result

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(owner, method, crashing)
        with pytest.raises(error):
            yield
