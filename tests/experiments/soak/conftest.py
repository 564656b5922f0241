"""Runs of two nodes in this process, with what was seen of them."""

import pytest

from experiments.deployment import apps
from nodes import compose_once
from server import gathering
from soaked_runs import Played


@pytest.fixture
def play(tmp_path, monkeypatch):
    """Return what plays a run; its evidence is closed at the end."""
    monkeypatch.setattr(gathering, "PAUSE", 0.01)
    monkeypatch.setattr(apps, "show_logs", lambda: None)
    compose_once(monkeypatch)
    played = []

    def one(spoil=lambda node, message, reply: reply):
        played.append(Played(tmp_path / f"run{len(played)}", spoil))
        return played[-1]

    yield one
    for run in played:
        run.evidence.close()
