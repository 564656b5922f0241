"""What a run tells Prometheus, the loggers and its JSON log is what its files say, and ends with it."""
# ruff: noqa: F811  fixtures of `scraping`

import contextlib
import json
import logging
import socket
import sys
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

import runs
import written_run
from experiments.session import monitoring
from experiments.session.monitoring import GAUGES, HOST, MODULES, open_logger, open_watch
from experiments.settings import log as json_log
from fedmf.errors import SettingError
from revealed import OF_A_SIMULATION, OF_NODES, WITH_A_LIMIT, after_each_round, objects, ports, samples  # noqa: F401
from runs import Crash

SMALL = (
    *("dataset=synthetic", "dataset.clients=24", "dataset.features=5", "dataset.classes=3"),
    *("population.cohort_size=8", "population.epochs=2"),
)
WATCHED = (*SMALL, "run.metrics_port=0")


@pytest.mark.long
def test_after_each_round_a_scrape_says_what_the_runs_files_say_and_names_the_run_alone(
    tmp_path, ports, after_each_round, monkeypatch
):
    seen, clock = [], count(1000)
    monkeypatch.setattr(monitoring, "time", SimpleNamespace(time=lambda: next(clock)))
    after_each_round(lambda: seen.append(samples(ports[-1])))
    directory = runs.run(tmp_path / "mine", *WATCHED, "faults.drop_out=0.3", "privacy.max_epsilon=9")
    statement, summary = json.loads((directory / "privacy.json").read_text()), runs.summary(directory)
    written = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert len(seen) == len(written) == 6
    assert any(row["replies"] < row["cohort_size"] for row in written)
    assert len({row["epsilon"] for row in written}) == 2
    for (found, labels), row in zip(seen, written, strict=True):
        assert set(found) == OF_A_SIMULATION | WITH_A_LIMIT
        assert {name for name, own in labels.items() if own} == {"fedmf_run_info"}
        assert labels["fedmf_run_info"] | {"version": ""} == {"run": "mine", "engine": "local", "version": ""}
        assert found == {
            "fedmf_run_info": 1,
            "fedmf_session_started_timestamp_seconds": 1000,
            "fedmf_last_round_timestamp_seconds": 1000 + row["round"],
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


@pytest.mark.long
def test_a_port_that_is_taken_is_an_error_and_without_one_nothing_listens_and_the_package_is_not_needed(
    tmp_path, ports, monkeypatch, capsys
):
    with socket.create_server((HOST, 0)) as other:
        port = other.getsockname()[1]
        said = runs.refused(capsys, tmp_path / "r", *SMALL, f"run.metrics_port={port}")
    assert f"run.metrics_port is {port}, which cannot be used on 127.0.0.1 (Address already in use)" in said
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    ports.clear()
    runs.run(tmp_path / "r", *SMALL)
    assert ports == []
    needs = r"run.metrics_port=1 needs the package prometheus_client.*\[metrics\]"
    with pytest.raises(SettingError, match=needs), open_watch(runs.composed("run.metrics_port=1"), "r"):
        pass


@pytest.mark.long
@pytest.mark.parametrize("ends", [None, Crash])
def test_the_server_listens_on_loopback_alone_and_ends_with_the_run_whatever_connections_are_open(
    tmp_path, ports, after_each_round, ends
):
    hanging = []

    def hang():
        hanging.append(socket.create_connection((HOST, ports[-1])))
        hanging[-1].send(b"GET /metrics HTTP/1.1\r\n")
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
        listening = [address for _, address, _, state, *_ in map(str.split, lines) if state == "0A"]
        assert [at for at in listening if at.endswith(f":{ports[-1]:04X}")] == [f"0100007F:{ports[-1]:04X}"]
        if ends is not None:
            raise ends

    after_each_round(hang)
    with contextlib.nullcontext() if ends is None else pytest.raises(ends):
        runs.run(tmp_path / "r", *WATCHED)
    assert len(hanging) == len(runs.metrics(tmp_path / "r"))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, ports[-1]))
    for connection in hanging:
        connection.close()


@pytest.mark.long
@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_every_number_of_a_row_is_sent_at_its_round_and_the_logger_is_closed(tmp_path, name, monkeypatch):
    monkeypatch.setitem(sys.modules, MODULES[name], package := MagicMock())
    row = written_run.metrics(private=False)[1]
    with contextlib.suppress(ZeroDivisionError), open_logger(name, tmp_path) as log:
        log(row)
        _ = 1 / 0  # a run that fails still closes its logger
    *calls, last = map(str, package.mock_calls)
    assert any(str(row["accuracy"]) in call and str(row["round"]) in call for call in calls)
    assert "epsilon" not in str(calls)
    assert "close()" in last or "__exit__" in last
    monkeypatch.setitem(sys.modules, MODULES[name], None)
    needs = rf"logger={name} needs the package.*fedmf\[{name}\]"
    with pytest.raises(SettingError, match=needs), open_logger(name, tmp_path):
        pass


CHANGING = """\
import logging
import multiprocessing
import torch

class Changes(torch.nn.Linear):
    def forward(self, x):
        if multiprocessing.parent_process() is not None:  # in a worker alone
            logging.getLogger("changing").warning("said by a worker")
        return super().forward(x)

def make(input_shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    return Changes(input_shape[0], classes)
"""


def test_an_error_is_one_object_with_its_traceback_that_names_the_run(monkeypatch):
    monkeypatch.setenv(json_log.LOG, "json")
    monkeypatch.setenv(json_log.RUN, "")
    json_log.name_run(7)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        given = ("server.strategy", logging.ERROR, "f.py", 3, "it broke:\n%s", ("here",), sys.exc_info())
    said = json.loads(json_log.Lines().format(logging.LogRecord(*given)))
    assert said.pop("traceback").endswith("ValueError: two\nlines")
    assert said.pop("time").endswith("Z")
    assert said == {"logger": "server.strategy", "level": "ERROR", "message": "it broke:\nhere", "run": "7"}


@pytest.mark.long
@pytest.mark.slow
def test_every_line_of_a_run_with_workers_is_an_object_and_stdout_is_its_result(tmp_path):
    """Its model logs a warning in each worker."""
    (tmp_path / "changing.py").write_text(CHANGING)
    own = ("model=custom", "model.name=changing:make", "run.directory=mine")
    process = runs.command(
        *SMALL, "population.epochs=1", *own, "run.log=json", "engine.workers=2", "output=json", cwd=tmp_path
    )
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout)["rounds"] == 3
    said = objects(process.stderr)
    assert {entry.get("run") for entry in said} == {"mine"}
    assert any(entry["message"].startswith("round 3/3") for entry in said)
    warned = [entry for entry in said if entry["logger"] == "changing"]
    assert {(entry["level"], entry["message"]) for entry in warned} == {("WARNING", "said by a worker")}
