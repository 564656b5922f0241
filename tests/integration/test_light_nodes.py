"""The light nodes of the benchmark do what real nodes do, in a real deployment."""

import time

import numpy as np
import pytest

from experiments.benchmark.node_count import register, start_light_nodes
from experiments.deployment.certificates import make_node_key
from experiments.deployment.loopback import Loopback
from experiments.run_files.reader import is_finished
from runs import metrics

pytestmark = pytest.mark.deployment

DATA = "dataset=synthetic dataset.clients=12 dataset.features=5 dataset.classes=3"
# Without noise and with all coordinates kept, what is random in a run is public: its model says what the nodes did.
EXACT = (
    f"{DATA} population.min_available=12 population.cohort_size=6 population.epochs=1 privacy.epsilon=null "
    "privacy.noise_multiplier=0 compression.keep_probability=1"
)


def trained(loopback, directory):
    process, deadline = loopback.submit(f"{EXACT} run.directory={directory}"), time.monotonic() + 300
    while not is_finished(directory):
        assert time.monotonic() < deadline, loopback.tail("run")
        assert process.poll() is None or is_finished(directory), loopback.tail("run")
        time.sleep(0.1)
    assert [row["replies"] for row in metrics(directory)] == [6, 6]
    process.wait(60)
    with np.load(directory / "model.npz") as model:
        return np.concatenate([model[name].ravel() for name in sorted(model.files)])


@pytest.mark.slow
def test_two_light_nodes_train_as_two_real_ones(tmp_path):
    with Loopback() as loopback:
        loopback.start_superlink()
        keys = [make_node_key(loopback.folder, node) for node in "ab"]
        register(loopback, keys)
        with start_light_nodes(loopback, keys, f"clients=6 {DATA}", 0.2) as nodes:
            light = trained(loopback, tmp_path / "light")
            nodes.terminate()
        for node, first in (("a", 0), ("b", 6)):
            loopback.start_node(node, f"clients=6 first={first} {DATA}")
        assert np.array_equal(trained(loopback, tmp_path / "real"), light)
    assert np.abs(light).max() > 0
