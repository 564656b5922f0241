"""A deployed run with real processes: what it tells Prometheus, and the logs of server and node as JSON."""

import contextlib
import re
import time

import pytest

from experiments.deployment.loopback import Loopback, free_port
from experiments.run_files.reader import is_finished
from nodes import DATA
from scraping import OF_A_SIMULATION, OF_NODES, objects, samples

pytestmark = [pytest.mark.deployment, pytest.mark.slow]

LIMIT = 300  # seconds: nothing takes so long, it only ends a test that hangs
RUN = f"{DATA} population.min_available=12 population.cohort_size=6 population.epochs=3 run.log=json"


def objects_among(text):
    """The objects in a log in which Flower's own programs write too."""
    return objects("\n".join(line for line in text.splitlines() if line.startswith('{"time"')))


def test_a_deployed_run_is_scraped_and_every_line_of_it_and_of_its_node_is_an_object(tmp_path, monkeypatch):
    port, directory, seen = free_port(), tmp_path / "mine", []
    monkeypatch.setenv("FEDMF_LOG", "json")  # as in a unit
    with Loopback() as loopback:
        loopback.start_superlink()
        loopback.register("a")
        loopback.start_supernode("a", f"clients=12 {DATA}")
        run = loopback.submit(
            f"{RUN} run.directory={directory} run.metrics_port={port} population.nodes={loopback.nodes}"
        )
        deadline = time.monotonic() + LIMIT
        while run.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError):  # it does not listen yet, or no more
                seen.append(samples(port))
            time.sleep(0.2)
        assert is_finished(directory), loopback.tail("run")
        loopback.stop("a")  # their last words too
        loopback.stop("superlink")
        server, node, followed = (loopback.log(name).read_text() for name in ("superlink", "a", "run"))
        run_id = re.search(r"run[^\d\n]*(\d{6,})", followed)[1]

    # Scraped in the midst of it: rounds, and one node, connected and heard.
    with_nodes = [values for values, _ in seen if "fedmf_round_nodes" in values]
    assert with_nodes
    last = max(with_nodes, key=lambda values: values["fedmf_rounds_released"])
    assert last["fedmf_rounds_released"] >= 1
    assert set(last) == OF_A_SIMULATION | OF_NODES
    assert last["fedmf_round_nodes"] == last["fedmf_round_nodes_connected"] == 1
    assert last["fedmf_round_nodes_silent"] == 0
    assert any(values.get("fedmf_waiting_for_nodes") for values, _ in seen)
    assert {labels["fedmf_run_info"]["engine"] for _, labels in seen} == {"deployment"}

    # Of the node's log what is ours: Flower's own programs write as they do.
    assert {entry["run"] for entry in objects_among(node) if "run" in entry} <= {run_id}
    assert not re.search(r"(?m)^(INFO|WARNING) (server|experiments|client)", node + server)

    # The server app's, as `flwr log` shows it: it names the run as Flower does.
    served = objects_among(followed)
    named = [entry for entry in served if entry["logger"].startswith(("server.", "experiments."))]
    assert {entry["run"] for entry in named} == {
        run_id
    }  # Flower's own first lines come before a run has a name
    assert any("epoch 1 begins with 12 clients" in entry["message"] for entry in served)
    assert any(entry["message"].startswith("done: accuracy") for entry in served)
    assert any(
        entry["logger"] == "fedmf-messages" and f":{port}/metrics" in entry["message"] for entry in served
    )
    first = next(at for at, line in enumerate(followed.splitlines()) if line.startswith('{"time"'))
    assert not re.search(
        r"(?m)^(INFO|WARNING) (server|experiments)", "\n".join(followed.splitlines()[first:])
    )
