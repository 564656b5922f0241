"""The row of a deployment: seconds a round of three nodes on this machine, over those of plain Flower."""

import json
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from experiments.deployment.loopback import Loopback
from fedmf.errors import RunStoppedError

NODES, ROUNDS, WARM = 3, 8, 2  # the first rounds are not counted
CLIENTS = 16  # of a node
DATA = f"dataset=synthetic dataset.clients={NODES * CLIENTS} dataset.features=20 dataset.classes=5"


def deployment_row() -> dict[str, Any]:
    """Return the median wall seconds of a round with the warm start, over those without it."""
    ours, plain = seconds_a_round(warm=True), seconds_a_round(warm=False)
    return {
        "ratio": ours / plain,
        "goal": None,
        "seconds": ours,
        "floor": plain,
        "floor_is": f"wall seconds of a round of {NODES} nodes under flower-superlink and flower-supernode, which start a "
        "Python process for each task; ours forks it from a parent that has imported torch and Flower",
    }


def seconds_a_round(*, warm: bool) -> float:
    """Return the median seconds of the rounds of a run in a deployment on the loopback interface."""
    with TemporaryDirectory() as folder, Loopback() as loopback:
        loopback.start_superlink(warm=warm)
        for number in range(NODES):
            loopback.register(f"n{number}")
            loopback.start_supernode(f"n{number}", f"clients={CLIENTS} {DATA}", warm=warm)
        run = Path(folder) / "run"
        process = loopback.submit(
            f"run.directory={run} {DATA} population.min_available={NODES * CLIENTS} population.cohort_size={2 * NODES} "
            f"population.rounds_per_epoch={ROUNDS} population.epochs=1 privacy.epsilon=null privacy.noise_multiplier=1 run.evaluations=1"
        )
        if process.wait() or not (run / "metrics.jsonl").exists():
            raise RunStoppedError(f"the deployment's run ended: {loopback.log('run').read_text()[-2000:]}")
        rounds = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        return median(float(one["seconds"]) for one in rounds[WARM:])
