"""A headless Chromium for the tests marked `browser`, and the pages that they open: real runs, a sweep, the site."""

import os
import shutil

import pytest
from playwright.sync_api import sync_playwright

import pages_of_runs


def executable():
    """The Chromium to drive: the one that CHROMIUM names, else the first on PATH, None for none."""
    named = os.environ.get("CHROMIUM")
    return shutil.which(named) if named else shutil.which("chromium")


@pytest.fixture(scope="module")
def chromium():
    """A running headless Chromium.

    For a module, not the session: while it runs, no other test of this process could run an event loop.
    """
    program = executable()
    if program is None:
        if named := os.environ.get("CHROMIUM"):
            pytest.fail(f"CHROMIUM is {named}, which is no program")
        pytest.skip("no Chromium, which is no Python package: install it, or name it with CHROMIUM")
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []  # it refuses root otherwise
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=program, args=[*flags, "--disable-dev-shm-usage", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    """The file of every page that a run or a comparison writes, by name."""
    return pages_of_runs.Pages(tmp_path_factory.mktemp("pages"))
