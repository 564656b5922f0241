"""Shared by all tests: the environment of an entry point, set before any numeric library is imported; cheap collection."""

import functools
import gc
import os
import signal
import sqlite3
from pathlib import Path

import pytest
from hypothesis import settings

import experiments  # noqa: F401

# The marks of runs under way are kept between test runs, never in the home of the account that runs the tests.
os.environ["FEDMF_STATE"] = str(Path(__file__).resolve().parents[1] / ".pytest_cache" / "fedmf_state")

# Tests of what a closed terminal ends hold under nohup as well, where all that they start would be deaf to it.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

settings.register_profile("default", deadline=None)  # how long an example takes is the machine's affair
settings.load_profile("default")

# No test cuts the power, so waiting for the disk decides nothing; a descriptor that cannot be synced is an error as before.
# Tests of what is synced, and when, put their own function here; processes that a test starts sync in earnest.
os.fsync = lambda descriptor: os.fstat(descriptor) and None


class Unforced(sqlite3.Connection):
    """A connection that does not wait for the disk either."""

    def executescript(self, script):
        return super().executescript(script.replace("synchronous = FULL", "synchronous = OFF"))


sqlite3.connect = functools.partial(sqlite3.connect, factory=Unforced)

gc.disable()  # until all is collected: the modules and the tests live to the end, and would be searched again and again


def pytest_collection_finish():
    """Search from here on what the tests make, and not the modules and the tests themselves."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path):
    """Look for doctests where one is written: the search goes through every name that a file of tests imports."""
    collectors = yield
    if file_path.suffix != ".py" or ">>> " in file_path.read_text():
        return collectors
    return [collector for collector in collectors if isinstance(collector, pytest.Module)]


@pytest.fixture
def in_this_process(monkeypatch):
    """Let server and nodes of a deployment play here: no wait for nodes, logs as they are, settings composed once."""
    from experiments.deployment import apps
    from server import membership

    monkeypatch.setattr(membership, "PAUSE", 0.01)
    monkeypatch.setattr(apps, "prepare", lambda: None)
    for name in ("run_settings", "node_settings"):
        monkeypatch.setattr(apps, name, functools.cache(getattr(apps, name)))
