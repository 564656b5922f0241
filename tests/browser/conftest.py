"""A headless Chromium for the tests marked `browser`, and the pages that they open: real runs, a sweep, the site."""

import os
import shutil

import pytest

import pages_of_runs


def executable():
    """The Chromium to drive: the one that CHROMIUM names, else the first on PATH, None for none."""
    named = os.environ.get("CHROMIUM")
    return shutil.which(named) if named else shutil.which("chromium")


@pytest.fixture(scope="module")
def chromium():
    """A running headless Chromium; skips where the machine has none.

    For a module, not the session: while it runs, no other test of this process could run an event loop.
    """
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install '.[dev]'")
    program = executable()
    if program is None:
        named = os.environ.get("CHROMIUM")
        pytest.skip(
            f"CHROMIUM is {named}, which is no program"
            if named
            else "no Chromium: install one, or name it with CHROMIUM"
        )
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []  # it refuses root otherwise
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=program, args=[*flags, "--disable-dev-shm-usage", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    """The file of every page that a run or a comparison writes, by name."""
    return pages_of_runs.Pages(tmp_path_factory.mktemp("pages"))
