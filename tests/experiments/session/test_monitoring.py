"""What a run tells Prometheus is what its files say, and ends with it."""

import json
import socket
import sys
import threading
import time
from pathlib import Path

import prometheus_client
import pytest

import runs
import scraping
from crashes import Crash
from experiments.session.monitoring import GAUGES, HOST, Watch, listening, open_watch
from fedmf.errors import SettingError
from scraping import OF_A_SIMULATION, OF_NODES, WITH_A_LIMIT, after_each_round, ports, samples  # noqa: F401  fixtures
from server.strategy import FedMF

pytestmark = pytest.mark.long

SMALL = (
    "dataset=synthetic",
    "dataset.clients=24",
    "dataset.features=5",
    "dataset.classes=3",
    "population.cohort_size=8",
    "population.epochs=2",
)
WATCHED = (*SMALL, "run.metrics_port=0")


def rows(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def server():
    """Serve a watch that stays as it is; return it and its port."""
    watch = Watch(prometheus_client)
    watch.set(rounds_released=3, rounds_planned=4, waiting_for_nodes=0)
    with listening(0, watch, "r", "local", 60.0) as port:
        yield watch, port


def test_after_each_round_a_scrape_says_what_the_runs_files_say(tmp_path, ports, after_each_round):  # noqa: F811
    seen, began = [], time.time()
    after_each_round(lambda: seen.append((samples(ports[-1])[0], time.time())))
    directory = runs.run(tmp_path / "mine", *WATCHED, "faults.drop_out=0.3", "privacy.max_epsilon=9")
    statement, summary = json.loads((directory / "privacy.json").read_text()), runs.summary(directory)
    written = rows(directory)
    assert len(seen) == len(written) == 6
    assert any(row["replies"] < row["cohort_size"] for row in written)
    assert len({row["epsilon"] for row in written}) == 2
    for (found, at), row in zip(seen, written, strict=True):
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


def test_the_names_are_a_fixed_list_and_the_only_labels_are_those_of_the_run(
    tmp_path,
    ports,  # noqa: F811
    after_each_round,  # noqa: F811
):
    seen = []
    after_each_round(lambda: seen.append(samples(ports[-1])))
    runs.run(tmp_path / "mine", *WATCHED)
    for values, labels in seen:
        assert set(values) == OF_A_SIMULATION
        assert {name for name, own in labels.items() if own} == {"fedmf_run_info"}
        assert {**labels["fedmf_run_info"], "version": "any"} == {
            "run": "mine",
            "engine": "local",
            "version": "any",
        }
    assert {f"fedmf_{name}" for name in GAUGES} | {
        "fedmf_run_info"
    } == OF_A_SIMULATION | WITH_A_LIMIT | OF_NODES


@pytest.mark.parametrize(
    ("overrides", "epsilon"),
    [
        (("run.reproducible=true",), None),
        (("privacy.epsilon=null", "privacy.noise_multiplier=0"), float("inf")),
    ],
)
def test_a_run_that_is_not_private_is_called_so(tmp_path, ports, after_each_round, overrides, epsilon):  # noqa: F811
    seen = []
    after_each_round(lambda: seen.append(samples(ports[-1])[0]))
    directory = runs.run(tmp_path / "r", *WATCHED, *overrides)
    assert not json.loads((directory / "privacy.json").read_text())["private"]
    assert {found["fedmf_private"] for found in seen} == {0}
    if epsilon is not None:
        assert {found["fedmf_epsilon_spent"] for found in seen} == {epsilon}


def test_a_resumed_run_goes_on_counting_where_it_was(tmp_path, ports, after_each_round, monkeypatch):  # noqa: F811
    def crash():
        if samples(ports[-1])[0]["fedmf_rounds_released"] == 4:
            raise Crash

    after_each_round(crash)
    with pytest.raises(Crash):
        runs.run(tmp_path / "r", *WATCHED)
    assert len(rows(tmp_path / "r")) == 4
    begun, summary = [], FedMF.summary
    monkeypatch.setattr(
        FedMF, "summary", lambda strategy: (summary(strategy), begun.append(samples(ports[-1])[0]))
    )
    after_each_round(lambda: None)
    runs.run(tmp_path / "r", *WATCHED, "run.resume=true")
    (found,), last = begun, rows(tmp_path / "r")[3]
    assert found["fedmf_rounds_released"] == 4
    assert found["fedmf_epochs_begun"] == 2
    assert found["fedmf_replies"] == last["replies"]
    assert found["fedmf_round_seconds"] == last["seconds"]
    assert found["fedmf_epsilon_spent"] == last["epsilon"]
    assert "fedmf_last_round_timestamp_seconds" not in found  # no round of this session yet


def test_a_port_that_is_taken_is_refused_before_anything_is_written(tmp_path, capsys):
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        port = other.getsockname()[1]
        code = runs.typed(*SMALL, f"run.metrics_port={port}", f"run.directory={tmp_path / 'r'}", cwd=tmp_path)
    assert code == 2
    said = capsys.readouterr().err
    assert f"run.metrics_port is {port}, which cannot be used on 127.0.0.1 (Address already in use)" in said
    assert not (tmp_path / "r").exists() or not list((tmp_path / "r").iterdir())


@pytest.mark.parametrize("ends", [None, Crash])
def test_the_server_ends_with_the_run(tmp_path, ports, after_each_round, capsys, ends):  # noqa: F811
    alive = []

    def look():
        alive.append(scraping.health(ports[-1])[0])
        if ends is not None:
            raise ends

    after_each_round(look)
    if ends is None:
        runs.run(tmp_path / "r", *WATCHED)
    else:
        with pytest.raises(ends):
            runs.run(tmp_path / "r", *WATCHED)
    assert set(alive) == {200}
    assert f"metrics: http://127.0.0.1:{ports[-1]}/metrics" in capsys.readouterr().err
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, ports[-1]))
    assert not [thread for thread in threading.enumerate() if "serve_forever" in thread.name]


def test_whoever_asks_and_says_nothing_delays_neither_rounds_nor_the_end(
    tmp_path,
    ports,  # noqa: F811
    after_each_round,  # noqa: F811
):
    patience, hanging = 40, []

    def hang():
        hanging.append(socket.create_connection((HOST, ports[-1])))
        hanging[-1].send(b"GET /metrics HTTP/1.1\r\n")
        assert samples(ports[-1])

    after_each_round(hang)
    began = time.monotonic()
    directory = runs.run(tmp_path / "r", *WATCHED)
    assert time.monotonic() - began < patience
    assert len(hanging) == 6
    assert max(row["seconds"] for row in rows(directory)) < patience / 4
    for connection in hanging:
        connection.close()


def test_without_a_port_nothing_listens_and_the_package_is_not_needed(
    tmp_path,
    ports,  # noqa: F811
    after_each_round,  # noqa: F811
    monkeypatch,
):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    seen = []
    after_each_round(lambda: seen.extend(thread.name for thread in threading.enumerate()))
    runs.run(tmp_path / "r", *SMALL)
    assert ports == []
    assert seen
    assert "serve_forever" not in "".join(seen)
    needs = r"run.metrics_port=1 needs the package prometheus_client.*\[metrics\]"
    with pytest.raises(SettingError, match=needs), open_watch(runs.composed("run.metrics_port=1"), "r"):
        pass


def test_it_listens_on_the_loopback_interface_alone_and_answers_two_paths(server):
    _, port = server
    status, kind, _ = scraping.get(port, "/metrics?x=1")
    assert status == 200
    assert kind.startswith("text/plain; version=")
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    listening = [line.split()[1:4:2] for line in lines]  # address, state
    hexed = f":{port:04X}"
    assert [address for address, state in listening if address.endswith(hexed) and state == "0A"] == [
        f"0100007F{hexed}"
    ]


def test_health_is_late_when_no_round_has_ended_for_the_stated_time_and_well_after_the_next(server):
    watch, port = server
    status, said = scraping.health(port)
    assert status == 200
    assert said == {
        "status": "ok",
        "run": "r",
        "waiting_for_nodes": False,
        "rounds_released": 3,
        "rounds_planned": 4,
        "seconds_since_last_round": said["seconds_since_last_round"],
        "late_after_seconds": 60.0,
    }
    watch._last_progress -= 61
    watch.set(waiting_for_nodes=1)
    status, said = scraping.health(port)
    assert (status, said["status"], said["waiting_for_nodes"]) == (503, "late", True)
    assert 61 <= said["seconds_since_last_round"] < 70
    watch.set(rounds_released=4)
    assert scraping.health(port)[0] == 200
