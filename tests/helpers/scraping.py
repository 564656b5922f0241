"""Reads what a run says of itself: on its port, as Prometheus does, and in logs of which each line must be one JSON object."""

import json
import logging
import re
import urllib.request

import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

from experiments.session.progress import View

# Written out: a figure that is added is added here too, by somebody who has asked what covers it (docs/deployment.md).
OF_A_SIMULATION = {
    "fedmf_run_info",
    "fedmf_rounds_released",
    "fedmf_rounds_planned",
    "fedmf_epochs_begun",
    "fedmf_epochs_planned",
    "fedmf_clients",
    "fedmf_cohort_size",
    "fedmf_replies",
    "fedmf_round_seconds",
    "fedmf_last_round_timestamp_seconds",
    "fedmf_session_started_timestamp_seconds",
    "fedmf_epsilon_spent",
    "fedmf_epsilon_planned",
    "fedmf_delta",
    "fedmf_private",
    "fedmf_waiting_for_nodes",
}
WITH_A_LIMIT = {"fedmf_epsilon_limit"}
OF_NODES = {
    "fedmf_round_nodes",
    "fedmf_round_nodes_connected",
    "fedmf_round_nodes_silent",
    "fedmf_nodes_expected",
    "fedmf_nodes_connected",
    "fedmf_nodes_in_epoch",
    "fedmf_pulls_under_way",
}


def samples(port):
    """Return {name: value} of all samples, and {name: labels}."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=300) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    found = [sample for family in families for sample in family.samples]
    assert len({sample.name for sample in found}) == len(found)
    return {sample.name: sample.value for sample in found}, {sample.name: sample.labels for sample in found}


class Ports(list):
    """The ports of the servers that runs opened, the last one last."""


@pytest.fixture
def ports(monkeypatch):
    """Take note of the port of each run that chooses one."""
    ports, start = Ports(), prometheus_client.start_http_server

    def noted(*arguments):
        server, thread = start(*arguments)
        ports.append(server.server_port)
        return server, thread

    monkeypatch.setattr(prometheus_client, "start_http_server", noted)
    return ports


@pytest.fixture
def after_each_round(monkeypatch):
    """Return a function that lets another be called after each round, once its row is written."""
    show = View.show

    def let(look):
        def shown(*arguments):
            show(*arguments)
            look()

        monkeypatch.setattr(View, "show", shown)

    return let


TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def objects(text):
    """Return the objects of a log, every line of which must be one of ours."""
    found = [json.loads(line) for line in text.splitlines()]
    for said in found:
        assert list(said)[:4] == ["time", "level", "logger", "message"]
        assert set(said) <= {"time", "level", "logger", "message", "run", "traceback"}
        assert TIME.fullmatch(said["time"])
        assert logging.getLevelName(said["level"]) in range(10, 60, 10)
    return found
