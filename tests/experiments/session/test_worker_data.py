"""What a worker process holds of the data."""

import numpy as np
import pytest

from experiments.session import engine
from experiments.settings.experiment import build
from runs import composed


def test_a_worker_holds_all_clients_and_no_test_set(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = composed("dataset=digits")
    monkeypatch.setattr(engine, "_client_app", lambda experiment: experiment)
    monkeypatch.setattr(engine, "_resident", [])
    held, whole = engine.resident_client_app(settings).dataset, build(settings).dataset
    assert (len(held.test), len(whole.test)) == (1, 360)
    assert len(held.clients) == len(whole.clients)
    np.testing.assert_array_equal(held.clients[7].x, whole.clients[7].x)
