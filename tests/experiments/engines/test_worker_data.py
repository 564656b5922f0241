"""What a worker process holds of the data."""

import sqlite3

import numpy as np
import pytest

import small_files
from experiments.engines import engine
from experiments.settings.experiment import build
from fedmf.errors import DataError
from runs import composed


def test_a_worker_holds_all_clients_and_no_test_set(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = composed("dataset=digits")
    monkeypatch.setattr(engine, "_client_app", lambda experiment: experiment)
    monkeypatch.setattr(engine, "_resident", [])
    held, whole = engine.resident_client_app(settings).dataset, build(settings).dataset
    assert (len(held.test), len(whole.test)) == (1, 360)
    assert len(held.clients) == len(whole.clients)
    np.testing.assert_array_equal(held.clients[7].x, whole.clients[7].x)


def test_a_worker_reads_no_test_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    given = small_files.settings("stackoverflow_sqlite", tmp_path)
    with sqlite3.connect(given["path"]) as file:
        file.execute("UPDATE examples SET serialized_example_proto = x'0a' WHERE split_name = 'test'")
    file.close()
    settings = composed(
        *(f"dataset.{key}={value}" for key, value in given.items() if key != "name"),
        *("dataset=stackoverflow", "model=lstm", "model.embedding=4", "model.hidden=4"),
        *("population.cohort_size=2", "privacy.epsilon=null", "privacy.noise_multiplier=0.5"),
    )
    monkeypatch.setattr(engine, "_client_app", lambda experiment: experiment)
    monkeypatch.setattr(engine, "_resident", [])
    assert [len(client) for client in engine.resident_client_app(settings).dataset.clients] == [6, 6, 6]
    with pytest.raises(DataError, match=r"tf\.train\.Example"):
        build(settings)
