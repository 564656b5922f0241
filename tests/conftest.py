"""Shared by all tests: the environment of an entry point, set before any numeric library is imported; cheap collection."""

import functools
import gc
import io
import os
import signal
from pathlib import Path

import pytest
import yaml
from hydra import version
from hydra._internal import defaults_list

import experiments  # noqa: F401

# Designs, and the marks of runs under way, are kept between test runs, never in the home of whoever runs the tests.
os.environ["FEDMF_CACHE"] = str(Path(__file__).resolve().parents[1] / ".pytest_cache" / "fedmf")
os.environ["FEDMF_STATE"] = str(Path(__file__).resolve().parents[1] / ".pytest_cache" / "fedmf_state")

# Tests of what a closed terminal ends hold under nohup as well, where all that they start would be deaf to it.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# No test cuts the power, so waiting for the disk decides nothing; a descriptor that cannot be synced is an error as before.
# Tests of what is synced, and when, put their own function here; processes that a test starts sync in earnest.
os.fsync = lambda descriptor: os.fstat(descriptor) and None

gc.disable()  # until all is collected: the modules and the tests live to the end, and would be searched again and again


def pytest_collection_finish():
    """Search from here on what the tests make, and not the modules and the tests themselves."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def yaml_parsed_once():
    """Remember what OmegaConf reads from each text: it parses all of conf/ at every composition, and copies what it is given."""
    parsed, parse = {}, yaml.load

    def load(stream, Loader):
        if Loader.__name__ != "OmegaConfLoader" or isinstance(stream, str | bytes):
            return parse(stream, Loader)
        text = stream.read()
        if text not in parsed:
            named = io.StringIO(text)
            named.name = getattr(stream, "name", "<file>")  # which a mistake in it is told with
            parsed[text] = parse(named, Loader)
        return parsed[text]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omegaconf.omegaconf.yaml.load", load)
        yield


@pytest.fixture(scope="session", autouse=True)
def hydra_without_detours():
    """Make Hydra's map of all choices for a list of defaults that looks into it, and parse each number of a version once.

    Hydra makes the map some thirty times a composition; the lists of conf/ never look. Both took a quarter of composing.
    """
    make = defaults_list._create_interpolation_map

    def make_where_asked(overrides, defaults, self_added):
        if any("${" in f"{getattr(item, 'value', '')}{getattr(item, 'path', '')}" for item in defaults):
            return make(overrides, defaults, self_added)
        return None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(defaults_list, "_create_interpolation_map", make_where_asked)
        patch.setattr(version, "_get_version", functools.cache(version._get_version))
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path):
    """Look for doctests where one is written: the search goes through every name that a file of tests imports."""
    collectors = yield
    if file_path.suffix != ".py" or ">>> " in file_path.read_text():
        return collectors
    return [collector for collector in collectors if isinstance(collector, pytest.Module)]
