"""Monitoring of a run: the gauges of `GAUGES` for Prometheus, over HTTP on the loopback interface of this machine; loggers.

Off unless run.metrics_port is given; the package is an extra. The gauges of rounds are set from the rows of metrics.jsonl. No
privacy statement covers which clients were silent, and when. So no gauge names a client, none counts the clients heard before
their round is released, and none tells who could not train (docs/deployment.md). The server ends with the run.

A logger sends metrics elsewhere, to TensorBoard, MLflow or Weights & Biases, off by default. It receives the rows of
metrics.jsonl as they are released, with the error of the round from mechanism.json as `noise_error`, and nothing else.
The packages are extras of their own and are imported only when asked for.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from client.imports import need
from experiments.settings.experiment import Experiment
from experiments.settings.log import messages
from experiments.settings.schema import LoggerName, Settings
from fedmf.accounting.caveats import LARGEST
from fedmf.errors import SettingError
from fedmf.version import __version__
from server.cohort import node_of
from server.exchange import pulls_under_way
from server.state import ServerState

HOST = "127.0.0.1"

# Name (after "fedmf_") -> unit and meaning; a gauge without a value is left out.
GAUGES: Mapping[str, tuple[str, str]] = {
    "rounds_released": ("rounds", "Rounds released since the run began, in all its sessions"),
    "rounds_planned": ("rounds", "Rounds of the whole run"),
    "epochs_begun": ("epochs", "Epochs that have begun, each of which counts whole"),
    "epochs_planned": ("epochs", "Epochs of the whole run"),
    "clients": ("clients", "Clients that the statement names"),
    "cohort_size": ("clients", "Clients of a round, as planned"),
    "replies": ("clients", "Clients heard in the last released round, as in metrics.jsonl"),
    "round_seconds": ("seconds", "Time of the last released round, as in metrics.jsonl"),
    "last_round_timestamp_seconds": ("Unix time", "When the last round of this session was released"),
    "session_started_timestamp_seconds": ("Unix time", "When this session began, or the run was resumed"),
    "epsilon_spent": ("epsilon", "Epsilon of the epochs that have begun, +Inf without noise"),
    "epsilon_planned": ("epsilon", "Epsilon of all planned epochs, +Inf without noise"),
    "epsilon_limit": ("epsilon", "privacy.max_epsilon; left out without one"),
    "delta": ("probability", "Delta of every epsilon here"),
    "private": (
        "0 or 1",
        "1 where the statement calls the run private, 0 for a run without noise or with secrets from its seed",
    ),
    "waiting_for_nodes": (
        "0 or 1",
        "1 while a deployed run waits for enough clients, or for a node of its round",
    ),
    "round_nodes": ("nodes", "Nodes that the clients of the round under way are behind; of a deployed run"),
    "round_nodes_connected": (
        "nodes",
        "Those of them that were connected when the round began; of a deployed run",
    ),
    "round_nodes_silent": (
        "nodes",
        "Nodes from which no client was heard in the last round that asked any of theirs, connected or not; of a deployed run",
    ),
    "nodes_expected": (
        "nodes",
        "Nodes of the list, in the epoch or not; without a list those of the epoch; of a deployed run",
    ),
    "nodes_connected": (
        "nodes",
        "Those of the expected nodes that were connected when the round began; of a deployed run",
    ),
    "nodes_in_epoch": (
        "nodes",
        "Those of the expected nodes that are in the epoch under way, connected or not; of a deployed run",
    ),
    "pulls_under_way": (
        "nodes",
        "Requests for a reply that are under way, at most one a node: above 1 nodes announce replies and deliver them slowly; of a deployed run",
    ),
}


class Watch:
    """The values of a run's gauges: a collector, which prometheus_client asks at each scrape."""

    def __init__(self) -> None:
        self.values: dict[str, float | Callable[[], float]] = {}
        self._of_round, self._silent = set[str](), set[str]()  # keys of nodes

    def set(self, **values: float | Callable[[], float] | None) -> None:
        """Set gauges by name; None leaves one as it is, and a function is called at each scrape."""
        self.values |= {name: value for name, value in values.items() if value is not None}

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        for name, value in [*self.values.items()]:
            number = float(value() if callable(value) else value)
            yield GaugeMetricFamily(f"fedmf_{name}", f"{GAUGES[name][1]}.", value=number)

    def begin(
        self, settings: Settings, experiment: Experiment, state: ServerState, row: Mapping[str, Any]
    ) -> None:
        """Set what is known when a session begins: the plan, the state that it continues from, the last row of its metrics."""
        plan = experiment.plan
        planned, begun = plan.spent().epsilon, len(state.ledger.entries)
        self.set(
            rounds_released=state.round,
            rounds_planned=plan.participation.rounds,
            epochs_begun=begun,
            epochs_planned=plan.participation.epochs,
            clients=plan.participation.clients,
            cohort_size=plan.participation.cohort_size,
            replies=row.get("replies"),
            round_seconds=row.get("seconds"),
            epsilon_spent=plan.spent_on(state.ledger).epsilon if begun else 0.0,
            epsilon_planned=planned,
            epsilon_limit=plan.privacy.max_epsilon,
            delta=plan.privacy.delta,
            private=plan.sigma > 0 and planned <= LARGEST and not settings.run.reproducible,
            session_started_timestamp_seconds=time.time(),
            waiting_for_nodes=0,
        )

    def on_row(self, row: Mapping[str, Any]) -> None:
        """Set what a row of metrics.jsonl has; without seconds it is of a round that an earlier session released."""
        self.set(
            rounds_released=row["round"],
            epochs_begun=row["epoch"],
            replies=row["replies"],
            round_seconds=row["seconds"],
            epsilon_spent=row["epsilon"],
            last_round_timestamp_seconds=None if row["seconds"] is None else time.time(),
        )

    def on_heard(self, answered: Sequence[str]) -> None:
        """Count the nodes of a deployment from which no client was heard when last asked; clients are KEY:NUMBER.

        The nodes of this round's clients that are not connected count, as `on_presence` was told of them.
        """
        if self._of_round:
            self._silent = (self._silent | self._of_round) - {node_of(client) for client in answered}
            self.set(round_nodes_silent=len(self._silent))

    def on_wait(self, waits: bool) -> None:
        self.set(waiting_for_nodes=int(waits))

    def on_presence(
        self, *, expected: Set[str], connected: Set[str], in_epoch: Set[str], in_round: Set[str]
    ) -> None:
        """Count the nodes that a round's clients are behind, those that are connected, and how many are expected at all.

        A node that is neither in a list nor in the epoch any more is no longer silent: it is gone.
        """
        self._of_round = {*in_round}
        self._silent &= expected | in_epoch
        self.set(
            round_nodes=len(in_round),
            round_nodes_connected=len(in_round & connected),
            pulls_under_way=pulls_under_way,
            nodes_expected=len(expected),
            nodes_connected=len(expected & connected),
            nodes_in_epoch=len(expected & in_epoch),
        )


@contextmanager
def open_watch(settings: Settings, run: str) -> Iterator[Watch]:
    """Yield the watch of the run in the folder called `run`, served while the block lasts where run.metrics_port is given.

    Raises `SettingError` where the port is taken or the package is missing.
    """
    port, watch = settings.run.metrics_port, Watch()
    if port is None:
        yield watch
        return
    prometheus_client = need("prometheus_client", f"run.metrics_port={port}", extra="metrics")
    registry = prometheus_client.CollectorRegistry()
    registry.register(watch)
    try:
        server, thread = prometheus_client.start_http_server(port, HOST, registry)
    except OSError as error:
        raise SettingError(
            f"run.metrics_port is {port}, which cannot be used on {HOST} ({error.strerror}); give another one, or 0, which "
            "takes one that is free and logs which."
        ) from error
    prometheus_client.Info("fedmf_run", "Which run this is.", registry=registry).info(
        {"run": run, "engine": settings.engine.name, "version": __version__}
    )
    messages.info(f"metrics: http://{HOST}:{server.server_port}/metrics")
    try:
        yield watch
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


# Takes one row of metrics.jsonl, and sends its numbers at the step `row["round"]`.
Log = Callable[[Mapping[str, Any]], object]

MODULES = {
    "tensorboard": "torch.utils.tensorboard",
    "mlflow": "mlflow",
    "wandb": "wandb",
}


def import_logger(name: LoggerName) -> Any:
    """Return the package of the logger called `name`, None for none.

    Raises `SettingError` when it is not installed.
    """
    return need(MODULES[name], f"logger={name}", extra=name) if name in MODULES else None


@contextmanager
def open_logger(name: LoggerName, directory: Path) -> Iterator[Log]:
    """Yield the logger called `name` for the run in `directory`, and close it at the end.

    TensorBoard writes below `directory`/tensorboard; the others go where their own environment variables say.
    Raises `SettingError` when the package is not installed.
    """
    module = import_logger(name)
    if name == "tensorboard":
        with closing(module.SummaryWriter(str(directory / "tensorboard"))) as writer:
            yield lambda row: [writer.add_scalar(k, v, row["round"]) for k, v in numbers(row).items()]
    elif name == "mlflow":
        with module.start_run(run_name=directory.name):
            yield lambda row: module.log_metrics(numbers(row), step=row["round"])
    elif name == "wandb":
        with module.init(project="fedmf", name=directory.name, dir=str(directory)) as run:
            yield lambda row: run.log(numbers(row), step=row["round"])
    else:
        yield lambda row: None


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a row, the round apart.

    >>> numbers({"round": 3, "accuracy": 0.5, "epsilon": None})
    {'accuracy': 0.5}
    """
    return {key: value for key, value in row.items() if key != "round" and isinstance(value, int | float)}
