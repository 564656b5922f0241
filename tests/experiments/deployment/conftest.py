"""Shared by tests of deployments: server and nodes in the test process."""

import pytest

from nodes import play_here


@pytest.fixture
def in_this_process(monkeypatch):
    """Let server and nodes play in this process."""
    play_here(monkeypatch)
