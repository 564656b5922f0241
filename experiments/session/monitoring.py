"""Monitoring of a run: gauges for Prometheus and its health, over HTTP on the loopback interface of this machine.

    GET /metrics    the gauges of `GAUGES`, in Prometheus' format
    GET /health     one JSON object: 200 while rounds end in time, 503 when none has for too long

Off unless run.metrics_port is given; the package is an extra. The gauges of rounds are set from the rows of metrics.jsonl. No
privacy statement covers which clients were silent, and when. So no gauge names a client, none counts the clients heard before
their round is released, and none tells who could not train (docs/alerts.md). The server ends with the run.
"""

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from socketserver import ThreadingMixIn
from threading import Thread
from typing import Any, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from client.imports import need
from experiments.settings.experiment import Experiment
from experiments.settings.log import messages
from experiments.settings.schema import Settings
from fedmf.accounting.caveats import LARGEST
from fedmf.errors import SettingError
from fedmf.plan import Plan
from fedmf.randomness import SecretKey
from fedmf.version import __version__
from server.cohort import Population, Presence, node_of
from server.pulling import pulls_under_way
from server.state import ServerState

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
_PATIENCE = 5.0  # seconds for a client to send its request, and to take the answer
_PAUSE = 0.1  # seconds after which the end of a run is noticed

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
INFO = ("run", "engine", "version")  # the labels of fedmf_run_info


class Watch:
    """The gauges of a run, each registered when it is first set; without prometheus_client none is kept."""

    def __init__(self, prometheus: Any = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._prometheus, self._clock = prometheus, clock
        self.registry: Any = None if prometheus is None else prometheus.CollectorRegistry()
        self._gauges: dict[str, Any] = {}
        self._last_progress = clock()
        self._of_round, self._silent = set[str](), set[str]()  # keys of nodes

    def set(self, **values: float | Callable[[], float] | None) -> None:
        """Set gauges by name; None leaves one as it is, and a function is called at each scrape."""
        if "rounds_released" in values:
            self._last_progress = self._clock()
        for name, value in values.items() if self._prometheus is not None else ():
            if name not in self._gauges and value is not None:
                described = f"fedmf_{name}", f"{GAUGES[name][1]}."
                self._gauges[name] = self._prometheus.Gauge(*described, registry=self.registry)
            if callable(value):
                self._gauges[name].set_function(value)
            elif value is not None:
                self._gauges[name].set(value)

    def begin(self, plan: Plan, state: ServerState, row: Mapping[str, Any] | None) -> None:
        """Set what earlier sessions of the run did: the state that it continues from, and the last row of its metrics."""
        begun, row = len(state.ledger.entries), row or {}
        self.set(
            rounds_released=state.round,
            epochs_begun=begun,
            epsilon_spent=plan.spent_on(state.ledger).epsilon if begun else 0.0,
            replies=row.get("replies"),
            round_seconds=row.get("seconds"),
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

    def health(self, within: float) -> tuple[HTTPStatus, dict[str, Any]]:
        """Return the answer to /health: OK where the last round ended within the last `within` seconds."""
        since = self._clock() - self._last_progress
        status, word = (HTTPStatus.OK, "ok") if since <= within else (HTTPStatus.SERVICE_UNAVAILABLE, "late")
        known = {
            name: int(self.registry.get_sample_value(f"fedmf_{name}"))
            for name in ("waiting_for_nodes", "rounds_released", "rounds_planned")
        }
        return status, {
            "status": word,
            **known,
            "waiting_for_nodes": bool(known["waiting_for_nodes"]),
            "seconds_since_last_round": round(since, 1),
            "late_after_seconds": within,
        }

    def on_heard(self, answered: Sequence[str]) -> None:
        """Count the nodes of a deployment from which no client was heard when last asked; clients are KEY:NUMBER.

        The nodes of this round's clients that are not connected count, as `found` was told of them.
        """
        if "round_nodes" in self._gauges:
            self._silent = (self._silent | self._of_round) - {node_of(client) for client in answered}
            self.set(round_nodes_silent=len(self._silent))

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the run as waiting for nodes while the block lasts."""
        self.set(waiting_for_nodes=1)
        try:
            yield
        finally:
            self.set(waiting_for_nodes=0)

    def found(self, clients: Sequence[str], places: Mapping[int, Sequence[str]], presence: Presence) -> None:
        """Count the nodes that a round's clients are behind, those that are connected, and how many are expected at all.

        A node that is neither in a list nor in the epoch any more is no longer silent: it is gone.
        """
        self._of_round = {node_of(client) for client in clients}
        self._silent &= presence.expected | presence.in_epoch
        expected, present, in_epoch = presence.counts()
        self.set(
            round_nodes=len(self._of_round),
            round_nodes_connected=len({node_of(client) for group in places.values() for client in group}),
            pulls_under_way=pulls_under_way,
            nodes_expected=expected,
            nodes_connected=present,
            nodes_in_epoch=in_epoch,
        )

    def over(self, population: Population) -> Population:
        """Return `population`, watched while it waits for nodes where gauges are kept."""
        return (
            population
            if self._prometheus is None
            else cast("Population", _WatchedPopulation(population, self))
        )


class _WatchedPopulation:
    """A deployment's population that tells a watch when it waits for nodes, and which it found, by number."""

    def __init__(self, population: Population, watch: Watch) -> None:
        self._population, self._watch = population, watch

    def __getattr__(self, name: str) -> Any:
        """Return what the population itself has."""
        return getattr(self._population, name)

    def gather(self, plan: Plan, epoch: int, step: int, grid: Any, *, key: SecretKey) -> None:
        """Wait for enough clients."""
        with self._watch.waiting():
            self._population.gather(plan, epoch, step, grid, key=key)

    def places(self, clients: Sequence[str], grid: Any) -> dict[int, list[str]]:
        """Return which clients each connected node plays."""
        with self._watch.waiting():
            places = self._population.places(clients, grid)
        presence = self._population.presence()
        if presence is not None:  # the nodes of a simulation are this machine
            self._watch.found(clients, places, presence)
        return places


@contextmanager
def open_watch(settings: Settings, experiment: Experiment, run: str) -> Iterator[Watch]:
    """Yield the watch of the run in the folder called `run`, served while the block lasts where run.metrics_port is given.

    Raises `SettingError` where the port is taken or the package is missing.
    """
    port = settings.run.metrics_port
    if port is None:
        yield Watch()
        return
    prometheus = need("prometheus_client", f"run.metrics_port={port}", extra="metrics")
    watch, plan = Watch(prometheus), experiment.plan
    planned = plan.spent().epsilon
    labels = dict(zip(INFO, (run, settings.engine.name, __version__), strict=True))
    prometheus.Info("fedmf_run", "Which run this is.", registry=watch.registry).info(labels)
    watch.set(
        rounds_released=0,
        rounds_planned=plan.participation.rounds,
        epochs_begun=0,
        epochs_planned=plan.participation.epochs,
        clients=plan.participation.clients,
        cohort_size=plan.participation.cohort_size,
        epsilon_spent=0,
        epsilon_planned=planned,
        epsilon_limit=plan.privacy.max_epsilon,
        delta=plan.privacy.delta,
        private=plan.sigma > 0 and planned <= LARGEST and not settings.run.reproducible,
        session_started_timestamp_seconds=time.time(),
        waiting_for_nodes=0,
    )
    with listening(port, watch, run, settings.run.health_seconds) as actual:
        messages.info(f"metrics: http://{HOST}:{actual}/metrics and /health")
        yield watch


@contextmanager
def listening(port: int, watch: Watch, run: str, within: float) -> Iterator[int]:
    """Serve the gauges of `watch` and the health of `run` while the block lasts; yields the port, a free one for 0."""
    metrics = need("prometheus_client", f"run.metrics_port={port}", extra="metrics").make_wsgi_app(
        watch.registry
    )

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Any:
        if environ["PATH_INFO"] == "/metrics":
            return metrics(environ, start)
        status, kind, content = HTTPStatus.NOT_FOUND, "text/plain", "/metrics or /health\n"
        if environ["PATH_INFO"] == "/health":
            status, said = watch.health(within)
            kind, content = "application/json", json.dumps({"run": run, **said}) + "\n"
        start(f"{status.value} {status.phrase}", [("Content-Type", kind)])
        return [content.encode()]

    try:
        server = make_server(HOST, port, answer, _Server, _Handler)
    except OSError as error:
        raise SettingError(
            f"run.metrics_port is {port}, which cannot be used on {HOST} ({error.strerror}); give another one, or 0, which "
            "takes one that is free and says which."
        ) from error
    thread = Thread(target=server.serve_forever, args=(_PAUSE,), name="fedmf metrics", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingMixIn, WSGIServer):
    """A server whose threads nobody waits for, and which is silent about a client that hangs up."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log what went wrong here: the run continues without an answer."""
        if not isinstance(sys.exc_info()[1], OSError):
            log.warning("a request for the metrics could not be answered", exc_info=True)


class _Handler(WSGIRequestHandler):
    timeout = _PATIENCE

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log no request: a scrape every few seconds would fill the log."""
