"""Shared by all tests: the environment of an entry point, set before any numeric library is imported."""

import experiments  # noqa: F401
