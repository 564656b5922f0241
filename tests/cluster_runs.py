"""What the tests of a Ray cluster run on it: files, a model that fails at one client, and several runs in one process."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

from client.data import Dataset
from client.data.clients import by_user, stored_examples
from experiments.cli.command import guard
from runs import composed, simulate

MARKED = 7  # the user whose inputs are all white
RUN = (
    "dataset=custom",
    "dataset.name=cluster_runs:mounted",
    "model=custom",
    "model.name=cluster_runs:Marked",
    "population.cohort_size=20",
    "population.epochs=2",
    "run.reproducible=true",
    "output=json",
)


class Marked(nn.Module):
    """Logistic regression that trains on everybody but the marked user: MARKED_CLIENT says what happens there."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(16, classes)

    def forward(self, x):
        if self.training and float(x.min()) == 1 and (fate := os.environ.get("MARKED_CLIENT")):
            if fate == "dies":
                os._exit(1)
            raise ValueError("the marked client")
        return self.linear(x.flatten(1))


def write_data(folder: Path, seed: int = 0) -> None:
    """Write the data of 40 users with four rows each, the last one for the test, into `folder`."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 255, (160, 4, 4), dtype=np.uint8)
    user, is_test = np.repeat(np.arange(40), 4), np.tile([False, False, False, True], 40)
    x[(user == MARKED) & ~is_test] = 255
    np.savez(folder / "data.npz", x=x, y=np.arange(160) % 3, user=user, is_test=is_test)


def mounted() -> Dataset:
    """Return the data of the folder that this process has mounted: which one, each machine decides."""
    with np.load(Path(os.environ["MOUNTED"]) / "data.npz") as held:
        x, y, is_test = held["x"], held["y"], held["is_test"]
        clients = by_user(x, y, held["user"], np.flatnonzero(~is_test))
        test = stored_examples(x, y, np.flatnonzero(is_test))
    return Dataset("mounted", clients, test, (4, 4), 3, "classification", "ours", "made up", "one user")


def play(directory: str, runs: str) -> None:
    """Run `runs`, JSON {name: settings}, each into its own directory, and print the exit codes as JSON."""
    codes = {}
    for name, settings in json.loads(runs).items():
        os.environ["MARKED_CLIENT"] = name if name in ("raises", "dies") else ""
        print(f"== {name}", file=sys.stderr, flush=True)
        given = composed(f"run.directory={directory}/{name}", *RUN, *settings)
        codes[name] = guard(lambda given=given: simulate(given))
        assert torch.get_num_threads() == 1
    print(json.dumps(codes))
