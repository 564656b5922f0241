"""What a run tells Prometheus and the loggers is what its files say, and ends with it."""
# ruff: noqa: F811  fixtures of `scraping`

import contextlib
import json
import socket
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

import pytest

import runs
import scraping
import written_run
from crashes import Crash, cut
from experiments.session.monitoring import GAUGES, HOST, MODULES, open_logger, open_watch
from fedmf.errors import SettingError
from scraping import OF_A_SIMULATION, OF_NODES, WITH_A_LIMIT, after_each_round, ports, samples  # noqa: F401
from server.strategy import FedMF

pytestmark = pytest.mark.long

SMALL = (
    *("dataset=synthetic", "dataset.clients=24", "dataset.features=5", "dataset.classes=3"),
    *("population.cohort_size=8", "population.epochs=2"),
)
WATCHED = (*SMALL, "run.metrics_port=0")


def rows(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def test_after_each_round_a_scrape_says_what_the_runs_files_say_and_names_the_run_alone(
    tmp_path, ports, after_each_round
):
    seen, began = [], time.time()
    after_each_round(lambda: seen.append((*samples(ports[-1]), time.time())))
    directory = runs.run(tmp_path / "mine", *WATCHED, "faults.drop_out=0.3", "privacy.max_epsilon=9")
    statement, summary = json.loads((directory / "privacy.json").read_text()), runs.summary(directory)
    written = rows(directory)
    assert len(seen) == len(written) == 6
    assert any(row["replies"] < row["cohort_size"] for row in written)
    assert len({row["epsilon"] for row in written}) == 2
    for (found, labels, at), row in zip(seen, written, strict=True):
        assert set(found) == OF_A_SIMULATION | WITH_A_LIMIT
        assert {name for name, own in labels.items() if own} == {"fedmf_run_info"}
        assert labels["fedmf_run_info"] | {"version": ""} == {"run": "mine", "engine": "local", "version": ""}
        last = found.pop("fedmf_last_round_timestamp_seconds")
        assert began <= found.pop("fedmf_session_started_timestamp_seconds") <= last <= at
        assert found == {
            "fedmf_run_info": 1,
            "fedmf_rounds_released": row["round"],
            "fedmf_rounds_planned": summary["rounds"],
            "fedmf_epochs_begun": row["epoch"],
            "fedmf_epochs_planned": summary["epochs"],
            "fedmf_clients": summary["clients"],
            "fedmf_cohort_size": row["cohort_size"],
            "fedmf_replies": row["replies"],
            "fedmf_round_seconds": row["seconds"],
            "fedmf_epsilon_spent": row["epsilon"],
            "fedmf_epsilon_planned": statement["epsilon"],
            "fedmf_epsilon_limit": 9,
            "fedmf_delta": statement["delta"],
            "fedmf_private": statement["private"],
            "fedmf_waiting_for_nodes": 0,
        }
    listed = {f"fedmf_{name}" for name in GAUGES} | {"fedmf_run_info"}
    assert listed == OF_A_SIMULATION | WITH_A_LIMIT | OF_NODES


def test_a_run_without_noise_is_not_called_private(tmp_path, ports, after_each_round):
    seen, bare = [], ("privacy.epsilon=null", "privacy.noise_multiplier=0")
    after_each_round(lambda: seen.append(samples(ports[-1])[0]))
    runs.run(tmp_path / "r", *WATCHED, *bare)
    assert set(seen[0]) == OF_A_SIMULATION
    assert {(found["fedmf_private"], found["fedmf_epsilon_spent"]) for found in seen} == {(0, float("inf"))}


def test_a_resumed_run_counts_from_where_it_was(tmp_path, ports, monkeypatch):
    last = rows(cut(tmp_path / "r", *WATCHED))[3]
    begun, summary = [], FedMF.summary
    monkeypatch.setattr(
        FedMF, "summary", lambda strategy: (summary(strategy), begun.append(samples(ports[-1])[0]))
    )
    runs.run(tmp_path / "r", *WATCHED, "run.resume=true")
    (found,) = begun
    assert (found["fedmf_rounds_released"], found["fedmf_epochs_begun"]) == (4, 2)
    assert found["fedmf_replies"] == last["replies"]
    assert found["fedmf_round_seconds"] == last["seconds"]
    assert found["fedmf_epsilon_spent"] == last["epsilon"]
    assert "fedmf_last_round_timestamp_seconds" not in found  # no round of this session yet


def test_a_port_that_is_taken_is_refused_before_anything_is_written(tmp_path, capsys):
    with socket.create_server((HOST, 0)) as other:
        port = other.getsockname()[1]
        said = runs.refused(capsys, tmp_path / "r", *SMALL, f"run.metrics_port={port}")
    assert f"run.metrics_port is {port}, which cannot be used on 127.0.0.1 (Address already in use)" in said


@pytest.mark.parametrize("ends", [None, Crash])
def test_the_server_listens_on_loopback_alone_and_ends_with_the_run_whatever_connections_are_open(
    tmp_path, ports, after_each_round, capsys, ends
):
    patience, hanging = 40, []

    def hang():
        hanging.append(socket.create_connection((HOST, ports[-1])))
        hanging[-1].send(b"GET /metrics HTTP/1.1\r\n")
        status, kind, _ = scraping.get(ports[-1], "/metrics?x=1")
        assert (status, kind.partition(";")[0]) == (200, "text/plain")
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
        listening = [address for _, address, _, state, *_ in map(str.split, lines) if state == "0A"]
        assert [at for at in listening if at.endswith(f":{ports[-1]:04X}")] == [f"0100007F:{ports[-1]:04X}"]
        if ends is not None:
            raise ends

    after_each_round(hang)
    began = time.monotonic()
    with contextlib.nullcontext() if ends is None else pytest.raises(ends):
        runs.run(tmp_path / "r", *WATCHED)
    assert time.monotonic() - began < patience
    assert len(hanging) == len(rows(tmp_path / "r"))
    assert max(row["seconds"] for row in rows(tmp_path / "r")) < patience / 4
    assert f"metrics: http://127.0.0.1:{ports[-1]}/metrics" in capsys.readouterr().err
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, ports[-1]))
    assert not [thread for thread in threading.enumerate() if "serve_forever" in thread.name]
    for connection in hanging:
        connection.close()


def test_without_a_port_nothing_listens_and_the_package_is_not_needed(tmp_path, ports, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    runs.run(tmp_path / "r", *SMALL)
    assert ports == []
    needs = r"run.metrics_port=1 needs the package prometheus_client.*\[metrics\]"
    with pytest.raises(SettingError, match=needs), open_watch(runs.composed("run.metrics_port=1"), "r"):
        pass


class Recorder:
    """Stands for a writer of any of the loggers' packages."""

    def __init__(self):
        self.sent, self.closed = [], False

    def add_scalar(self, key, value, step):
        self.sent.append((step, key, value))

    def log(self, values, step):
        self.sent += [(step, key, value) for key, value in values.items()]

    def close(self, *error):
        self.closed = True

    def __enter__(self):
        return self

    __exit__ = close


@pytest.fixture
def recorder(monkeypatch):
    """One recorder behind the names that each package uses."""
    recorder = Recorder()
    packages = {
        "torch.utils.tensorboard": {"SummaryWriter": lambda path: recorder},
        "mlflow": {"start_run": lambda run_name: recorder, "log_metrics": recorder.log},
        "wandb": {"init": lambda project, name, dir: recorder},
    }
    for name, contents in packages.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    return recorder


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_every_number_of_a_row_is_sent_at_its_round_and_the_logger_is_closed(
    tmp_path, name, recorder, monkeypatch
):
    given = written_run.metrics(private=False)[:2]
    with contextlib.suppress(ZeroDivisionError), open_logger(name, tmp_path) as log:
        for row in given:
            log(row)
        assert not recorder.closed
        _ = 1 / 0  # a run that fails still closes its logger
    assert recorder.closed
    assert {(row["round"], "accuracy", row["accuracy"]) for row in given} <= {*recorder.sent}
    assert {key for _, key, _ in recorder.sent} == {*given[0]} - {"round", "epsilon"}
    monkeypatch.setitem(sys.modules, MODULES[name], None)
    needs = rf"logger={name} needs the package.*fedmf\[{name}\]"
    with pytest.raises(SettingError, match=needs), open_logger(name, tmp_path):
        pass


def test_a_run_sends_its_rows_with_the_error_of_the_round(tmp_path, recorder):
    small = ("population.epochs=1", "population.rounds_per_epoch=2", "population.cohort_size=8")
    directory = runs.run(tmp_path / "r", *small, "logger=tensorboard", "metrics=[accuracy,top5]")
    last = rows(directory)[-1]
    assert {name for _, name, _ in recorder.sent} == {*last, "noise_error"} - {"round"}
    errors = json.loads((directory / "mechanism.json").read_text())["per_round_error"]
    assert [value for _, name, value in recorder.sent if name == "noise_error"] == errors
    assert (2, "accuracy", last["accuracy"]) in recorder.sent
