"""Shared by all tests: the environment of an entry point, set before any numeric library is imported."""

import os
from pathlib import Path

import experiments  # noqa: F401

# Designs are kept between test runs, but never in the home of whoever runs the tests.
os.environ["FEDMF_CACHE"] = str(Path(__file__).resolve().parents[1] / ".pytest_cache" / "fedmf")
