"""Shared by all tests: the environment of an entry point, set before any numeric library is imported."""

import os
from pathlib import Path

import experiments  # noqa: F401

# Designs, and the marks of runs under way, are kept between test runs, never in the home of whoever runs the tests.
os.environ["FEDMF_CACHE"] = str(Path(__file__).resolve().parents[1] / ".pytest_cache" / "fedmf")
os.environ["FEDMF_STATE"] = str(Path(__file__).resolve().parents[1] / ".pytest_cache" / "fedmf_state")
