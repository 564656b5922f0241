"""The client work that every system is given, the bare PyTorch loop over it, and the turns in which both are timed.

Imports torch and numpy only: it runs in the environments of other systems too.
"""

import argparse
import contextlib
import ctypes
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

ROWS = {"simulation_logistic": ("logistic", 62), "simulation_mlp": ("mlp", 10), "simulation_cnn": ("cnn", 62)}
SHAPE = (28, 28)
CLIENTS, EXAMPLES = 100, 20
LEARNING_RATE, BATCH_SIZE = 0.1, 10
L2_NORM, NOISE_MULTIPLIER = 0.1, 1.0


def cohort(
    classes: int, clients: int = CLIENTS, examples: int = EXAMPLES
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return inputs (examples, 28, 28) float32 and labels of each client, random and the same at every call."""
    rng = np.random.default_rng(0)
    return [
        (rng.standard_normal((examples, *SHAPE), dtype=np.float32), rng.integers(0, classes, examples))
        for _ in range(clients)
    ]


def build(model: str, classes: int) -> nn.Module:
    """Return an untrained model with the function and the order of parameters of `client.models`; a test compares them."""
    height, width = SHAPE
    torch.manual_seed(0)
    if model == "logistic":
        return nn.Sequential(nn.Flatten(), nn.Linear(height * width, classes))
    if model == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(height * width, 256), nn.ReLU(), nn.Linear(256, classes))
    features = 64 * ((height - 2) // 2 - 2) * ((width - 2) // 2 - 2)
    convolutions = (nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU())
    dense = (nn.Linear(features, 128), nn.ReLU(), nn.Linear(128, classes))
    return nn.Sequential(nn.Unflatten(1, (1, height)), *convolutions, nn.Flatten(), *dense)


def train(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Train a model in place by one epoch of local SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for batch in torch.split(torch.randperm(len(x)), BATCH_SIZE):
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(x[batch]), y[batch]))
        optimizer.step()


def bare_round(model: nn.Module, clients: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the mean update of the cohort, (d,), by plain local SGD from the same start."""
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    initial = parameters_to_vector(model.parameters()).detach()
    total = torch.zeros_like(initial)
    for x, y in clients:
        model.load_state_dict(start)
        train(model, x, y)
        total += parameters_to_vector(model.parameters()).detach() - initial
    model.load_state_dict(start)
    return total / len(clients)


class Turns:
    """Times the rounds of a system, which calls it after each, in turns with those of the bare loop.

    It is true while another round is wanted. The first round warms up.
    """

    def __init__(self, row: str, repeats: int) -> None:
        self.row, self._repeats = row, repeats
        # An orphan of a child becomes a child of this process, so that its time is found below it.
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
        torch.set_num_threads(1)
        model, classes = ROWS[self.row]
        self.model = build(model, classes)
        self.clients = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in cohort(classes)]
        self._turns: list[tuple[float, float, float]] = []
        bare_round(self.model, self.clients)
        self._begun: float | None = None

    def __call__(self, trained: int) -> bool:
        """Take the time of the round just run, which trained on so many examples, and run the bare loop."""
        spent = cpu_seconds()
        if trained != CLIENTS * EXAMPLES:
            raise ValueError(
                f"a round trained on {trained} examples instead of {CLIENTS * EXAMPLES}: no comparison."
            )
        if self._begun is not None:
            floor = time.process_time()
            bare_round(self.model, self.clients)
            floor = time.process_time() - floor
            self._turns.append(((spent - self._begun) / floor, spent - self._begun, floor))
        self._begun = cpu_seconds()
        return len(self._turns) < self._repeats

    def result(self) -> dict[str, float]:
        """Return ratio, seconds and floor of the turn with the median ratio."""
        ratio, seconds, floor = sorted(self._turns)[(len(self._turns) - 1) // 2]
        return {"ratio": ratio, "seconds": seconds, "floor": floor}


def main(run_rounds: Callable[[Turns], object]) -> None:
    """Run the rows that the command line names, `[ROW ...] [--repeats N]`, and print {row: result} as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}; all without any")
    parser.add_argument("--repeats", type=int, default=7, help="turns of each row and the bare loop")
    given = parser.parse_args()
    if unknown := set(given.rows) - set(ROWS):
        parser.error(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    found = {}
    for row in given.rows or ROWS:
        turns = Turns(row, given.repeats)
        run_rounds(turns)
        found[row] = turns.result()
    print(json.dumps(found, indent=2))


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of all processes below it, those that have ended included."""
    spent = os.times()
    total = time.process_time() + spent.children_user + spent.children_system
    parents, ticks = {}, {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # one that has just ended
            fields = file.read_text().rpartition(")")[2].split()  # from its state on, behind its name
            number = int(file.parent.name)
            parents[number], ticks[number] = int(fields[1]), sum(map(int, fields[11:15]))  # utime to cstime
    below = {os.getpid()}
    while found := {number for number, parent in parents.items() if parent in below} - below:
        below |= found
        total += sum(ticks[number] for number in found) / os.sysconf("SC_CLK_TCK")
    return total
