"""One run of the product's own pipeline, from its settings to the score of its last model, without a run directory.

A trial is named by its cell (an entry of a table), the server's learning rate and the seed. Everything hangs on these:
its secrets derive from the seed, so that it can be computed again bit for bit. Such a run is NOT private.
"""

import hashlib
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from client.app import make_client_app
from client.data import Dataset, Examples
from client.data.dataset import LazyClients
from client.losses import find_loss
from client.parameters import set_parameters
from client.scoring import score
from experiments.engines.grid import InProcessWorker, run_locally
from experiments.settings.compose import compose
from experiments.settings.data import DatasetSettings, arguments, load_dataset
from experiments.settings.experiment import Experiment, build, run_secret
from experiments.settings.schema import Settings
from fedmf.randomness import PublicSeed, SecretKey
from fedmf.updates.vectors import Vector
from server.app import make_server_app
from server.cohort import SimulatedPopulation
from server.exchange import tasks_per_message
from server.state import first_state
from server.strategy import FedMF


@dataclass(frozen=True)
class Cell:
    """One entry of a table: what its row and column are called, and the settings of its runs as overrides.

    `needs_data`: whether the runs read a data file of the user's own, whose place is no setting of theirs.
    """

    task: str
    mechanism: str
    keep_probability: float
    epsilon: float
    overrides: tuple[str, ...]
    needs_data: bool = False

    @property
    def fingerprint(self) -> str:
        """The overrides in eight characters, so that results of other settings under the same names are not taken."""
        return hashlib.sha256("\n".join(self.overrides).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Trial:
    """One run of a cell; with `held_out` above 0 that share of the training clients scores it and does not train."""

    cell: Cell
    learning_rate: float
    seed: int
    held_out: float = 0.0

    @property
    def key(self) -> str:
        """The trial as JSON: all that its result depends on but the data, which a file of results has one of, and the code, which each line names."""
        cell = self.cell
        return json.dumps(
            {
                "task": cell.task,
                "mechanism": cell.mechanism,
                "keep": float(cell.keep_probability),
                "epsilon": float(cell.epsilon),
                "settings": cell.fingerprint,
                "rate": self.learning_rate,
                "seed": self.seed,
                "held_out": self.held_out,
            }
        )


@dataclass(frozen=True)
class Outcome:
    """The score of a run's last model (accuracy 0 where it is not finite), and the CPU and wall seconds that the run took.

    `wall` is None in lines written before it was measured.
    """

    accuracy: float
    loss: float | None
    seconds: float
    wall: float | None = None


def play(trial: Trial, data: Path | None) -> Outcome:
    """Return what came of a trial; `data` is the data file for cells that need one."""
    clock = Clock()
    experiment, secret = prepare(trial, data)
    accuracy, loss = scored(experiment, train(experiment, secret))
    return Outcome(accuracy, loss, *clock.taken())


class Clock:
    """CPU and wall time from its making on."""

    def __init__(self) -> None:
        self._cpu, self._wall = time.process_time(), time.monotonic()

    def taken(self) -> tuple[float, float]:
        """Return the CPU and wall seconds since then, rounded to hundredths."""
        return round(time.process_time() - self._cpu, 2), round(time.monotonic() - self._wall, 2)


def prepare(trial: Trial, data: Path | None) -> tuple[Experiment, SecretKey]:
    """Return the experiment of a trial and the secret of its run."""
    own = [f"dataset.path={json.dumps(str(data))}"] if trial.cell.needs_data else []
    drawn = [
        "run.reproducible=true",
        f"seed={trial.seed}",
        f"optimizer.learning_rate={trial.learning_rate!r}",
    ]
    settings = compose("config", [*trial.cell.overrides, *own, *drawn], Settings)
    dataset = _loaded(settings.dataset)
    if trial.held_out:
        dataset = hold_out(dataset, trial.held_out, PublicSeed(trial.seed))
    return build(settings, dataset), run_secret(settings)


@lru_cache(maxsize=2)
def _loaded(settings: DatasetSettings) -> Dataset:
    """Return the data set, loaded once a process."""
    return load_dataset(arguments(settings))


def hold_out(dataset: Dataset, share: float, seed: PublicSeed) -> Dataset:
    """Return a data set whose test examples are those of floor(share * N) training clients, who train no more.

    The seed chooses them; the test split of `dataset` is left out altogether.
    """
    clients = len(dataset.clients)
    order = seed.generator("held out clients", dataset.name).permutation(clients)
    aside, left = np.split(order, [math.floor(share * clients)])
    held = Chosen(dataset.clients, aside)[:]
    test = Examples(
        np.concatenate([examples.x for examples in held]), np.concatenate([examples.y for examples in held])
    )
    return replace(dataset, clients=Chosen(dataset.clients, np.sort(left)), test=test)


@dataclass(frozen=True)
class Chosen(LazyClients):
    """Some of the clients of a data set: client i is its client `indices[i]`."""

    everyone: Sequence[Examples]
    indices: npt.NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self.indices)

    def client(self, i: int) -> Examples:
        """Return one client's examples."""
        return self.everyone[int(self.indices[i])]


def train(experiment: Experiment, secret: SecretKey) -> Vector:
    """Return the last model (d,) of the Flower strategy and the clients' app on the local grid, as in a simulation."""
    plan = experiment.plan
    app = make_client_app(experiment.examples_of, experiment.make_trainer, experiment.client_plan)
    strategy = FedMF(
        plan,
        experiment.optimizer,
        SimulatedPopulation(),
        first_state(plan, experiment.initial, secret),
        replies=experiment.replies,
        tasks_per_message=tasks_per_message(plan),
        fixed_digest=experiment.fixed_digest,
    )
    run_locally(make_server_app(lambda context: strategy), InProcessWorker(app))
    return strategy.state.model


def scored(experiment: Experiment, model: Vector) -> tuple[float, float | None]:
    """Return accuracy and loss of `model` on the experiment's test examples; (0, None) if training diverged."""
    set_parameters(experiment.model, model)
    dataset = experiment.dataset
    loss = find_loss(experiment.training.loss)
    found = score(experiment.model, dataset.test, loss=loss, uncounted=dataset.uncounted)
    if not math.isfinite(found.loss):
        return 0.0, None
    return round(found.accuracy, 5), round(found.loss, 5)
