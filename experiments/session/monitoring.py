"""Monitoring of a run: its figures for Prometheus and its health, over HTTP on the loopback interface of this machine.

    GET /metrics    the gauges of `GAUGES`, in Prometheus' format
    GET /health     one JSON object: 200 while rounds end in time, 503 when none has for too long

Off unless run.metrics_port is given; the package is an extra. The run replaces one mapping that contains all figures
(`Watch`); the thread of a request reads the mapping that is there, so that neither waits and no figure is half changed.
The figures of rounds are those of metrics.jsonl and come from its rows. Which clients were silent, and when, no privacy statement
covers, so that no figure names a client, none counts the clients heard before their round is released, and none says who could
not train (docs/alerts.md). The server ends with the run.
"""

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType
from typing import Any

from client.imports import need
from experiments.settings.engine import DeploymentSettings
from experiments.settings.experiment import Experiment
from experiments.settings.schema import Settings
from fedmf.accounting import Ledger
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
_PATIENCE = 5.0  # seconds for a client to send its question, and to take the answer
_PAUSE = 0.1  # seconds after which the end of a run is noticed
_JSON = "application/json"

# Name (after "fedmf_") -> unit and meaning; a figure that is not known, or that a run does not have, is left out.
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

# {gauge: value}, and `run`, `engine` and `progress_clock`, the time of the last progress by a clock that never falls.
Figures = Mapping[str, Any]


def table() -> str:
    """Return all metrics as a table of Markdown."""
    rows = [
        ("Metric", "Type", "Unit", "Meaning"),
        ("---",) * 4,
        ("`fedmf_run_info`", "info", "1", f"Labels {', '.join(INFO)}; `run` is the name of the run's folder"),
        *((f"`fedmf_{name}`", "gauge", unit, meaning) for name, (unit, meaning) in GAUGES.items()),
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def health(seen: Figures, within: float, now: float) -> tuple[bool, dict[str, Any]]:
    """Return whether the last progress was within the last `within` seconds before `now`, and the answer to /health."""
    since = now - seen["progress_clock"]
    return since <= within, {
        "status": "ok" if since <= within else "late",
        "run": seen["run"],
        "waiting_for_nodes": bool(seen["waiting_for_nodes"]),
        "rounds_released": seen["rounds_released"],
        "rounds_planned": seen["rounds_planned"],
        "seconds_since_last_round": round(since, 1),
        "late_after_seconds": within,
    }


class Watch:
    """The figures of a run as they are now, for whoever plays it to change and for everybody to read."""

    def __init__(
        self,
        plan: Plan,
        *,
        run: str,
        engine: str,
        reproducible: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        planned = plan.spent()
        self._clock = clock
        self._of_round, self._silent = set[str](), set[str]()  # keys of nodes
        self.figures: Figures = {
            "run": run,
            "engine": engine,
            "rounds_released": 0,
            "rounds_planned": plan.participation.rounds,
            "epochs_begun": 0,
            "epochs_planned": plan.participation.epochs,
            "clients": plan.participation.clients,
            "cohort_size": plan.participation.cohort_size,
            "epsilon_spent": 0.0,
            "epsilon_planned": planned.epsilon,
            "epsilon_limit": plan.privacy.max_epsilon,
            "delta": plan.privacy.delta,
            "private": float(plan.sigma > 0 and planned.epsilon <= LARGEST and not reproducible),
            "session_started_timestamp_seconds": time.time(),
            "waiting_for_nodes": 0.0,
            "progress_clock": clock(),
        }

    def begin(self, plan: Plan, state: ServerState, row: Mapping[str, Any] | None) -> None:
        """Take over what the run's earlier sessions did: the state to go on from, and the last row of its metrics."""
        self._change(
            rounds_released=state.round,
            epochs_begun=len(state.ledger.entries),
            epsilon_spent=plan.spent_on(state.ledger).epsilon if state.ledger != Ledger() else 0.0,
            replies=None if row is None else row["replies"],
            round_seconds=None if row is None else row["seconds"],
            progress_clock=self._clock(),
        )

    def on_row(self, row: Mapping[str, Any], /) -> None:
        """Take the row that a released round has in metrics.jsonl; without seconds it is one of an earlier session."""
        self._change(
            rounds_released=row["round"],
            epochs_begun=row["epoch"],
            replies=row["replies"],
            round_seconds=row["seconds"],
            epsilon_spent=row["epsilon"],
            progress_clock=self._clock(),
            **({} if row["seconds"] is None else {"last_round_timestamp_seconds": time.time()}),
        )

    def on_heard(self, number: int, asked: Sequence[str], answered: Sequence[str]) -> None:
        """Count the nodes of a deployment from which no client was heard when last asked; clients are KEY:NUMBER.

        The nodes of this round's clients that are not connected count, as `found` was told of them.
        """
        if "round_nodes" in self.figures:
            heard = {node_of(client) for client in answered}
            self._silent = (self._silent | self._of_round) - heard
            self._change(round_nodes_silent=len(self._silent))

    def over(self, population: Population) -> Population:
        """Return `population`, watched while it waits for nodes."""
        return _WatchedPopulation(population, self)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Say that the run waits for nodes while the block lasts."""
        self._change(waiting_for_nodes=1.0)
        try:
            yield
        finally:
            self._change(waiting_for_nodes=0.0)

    def found(
        self, clients: Sequence[str], places: Mapping[int, Sequence[str]], presence: Presence | None
    ) -> None:
        """Count the nodes that a round's clients are behind, those that are connected, and how many are expected at all.

        A node that nobody expects any more, in no list and not in the epoch, is no longer silent: it is gone.
        """
        connected = {node_of(client) for group in places.values() for client in group}
        self._of_round = {node_of(client) for client in clients}
        self._change(
            round_nodes=len(self._of_round),
            round_nodes_connected=len(connected),
            pulls_under_way=pulls_under_way,
        )
        if presence is not None:
            self._silent &= presence.expected | presence.in_epoch
            expected, present, in_epoch = presence.counts()
            self._change(nodes_expected=expected, nodes_connected=present, nodes_in_epoch=in_epoch)

    def _change(self, **values: Any) -> None:
        self.figures = {**self.figures, **values}


class _WatchedPopulation:
    """A deployment's population that tells a watch when it waits for nodes, and which it found, by number."""

    def __init__(self, population: Population, watch: Watch) -> None:
        self._population, self._watch = population, watch

    def gather(self, plan: Plan, epoch: int, step: int, grid: Any, *, key: SecretKey) -> None:
        """Wait for enough clients."""
        with self._watch.waiting():
            self._population.gather(plan, epoch, step, grid, key=key)

    def cohort(self, plan: Plan, server_round: int) -> list[str]:
        """Return the clients of a round."""
        return self._population.cohort(plan, server_round)

    def places(self, clients: Sequence[str], grid: Any) -> dict[int, list[str]]:
        """Return which clients each connected node plays."""
        with self._watch.waiting():
            places = self._population.places(clients, grid)
        self._watch.found(clients, places, self._population.presence())
        return places

    def presence(self) -> Presence | None:
        """Return which nodes there are."""
        return self._population.presence()

    def question(self, clients: Sequence[str]) -> dict[str, bytes]:
        """Return what else a node is asked."""
        return self._population.question(clients)

    def declines(self, clients: Sequence[str], reply: Any) -> bool:
        """Say whether a reply leaves its clients silent."""
        return self._population.declines(clients, reply)

    def admits(self, clients: Sequence[str], reply: Any) -> bool:
        """Say whether a reply counts."""
        return self._population.admits(clients, reply)


@contextmanager
def open_watch(settings: Settings, experiment: Experiment, run: str) -> Iterator[Watch]:
    """Yield the watch of the run in the folder called `run`, served while the block lasts where run.metrics_port says so.

    Raises `SettingError` where the port is taken or the package is missing.
    """
    watch = Watch(
        experiment.plan, run=run, engine=settings.engine.name, reproducible=settings.run.reproducible
    )
    if settings.run.metrics_port is None:
        yield watch
        return
    server = listen(settings.run.metrics_port, lambda: watch.figures, settings.run.health_seconds)
    thread = threading.Thread(target=server.serve_forever, args=(_PAUSE,), name="fedmf metrics", daemon=True)
    thread.start()
    print(f"metrics: http://{HOST}:{server.server_port}/metrics and /health", file=sys.stderr)
    try:
        yield watch
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def watched_population(settings: Settings, watch: Watch, population: Population) -> Population:
    """Return `population`, of a deployment watched while it waits for nodes; those of a simulation are this machine."""
    return watch.over(population) if isinstance(settings.engine, DeploymentSettings) else population


def listen(port: int, figures: Callable[[], Figures], within: float) -> ThreadingHTTPServer:
    """Return a server that listens on `port` of the loopback interface, 0 for one that is free, and answers nothing yet."""
    core, exposition = (
        need(f"prometheus_client.{part}", f"run.metrics_port={port}", extra="metrics")
        for part in ("core", "exposition")
    )
    registry = core.CollectorRegistry()
    registry.register(_Collector(core, figures))

    class Handler(_Handler):
        def answer(self, path: str) -> tuple[HTTPStatus, str, bytes] | None:
            if path == "/metrics":
                encode, kind = exposition.choose_encoder(self.headers.get("Accept", ""))
                return HTTPStatus.OK, kind, encode(registry)
            if path == "/health":
                is_well, said = health(figures(), within, time.monotonic())
                status = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
                return status, _JSON, json.dumps(said).encode() + b"\n"
            return None

    try:
        return _Server((HOST, port), Handler)
    except OSError as error:
        raise SettingError(
            f"run.metrics_port is {port}, which cannot be used on {HOST} ({error.strerror}); give another one, or 0, which "
            "takes one that is free and says which."
        ) from error


class _Collector:
    """The figures as they are at the moment of a question, as families of Prometheus."""

    def __init__(self, families: ModuleType, figures: Callable[[], Figures]) -> None:
        self._families, self._figures = families, figures

    def collect(self) -> Iterator[Any]:
        """Yield a family for each figure that has a value."""
        seen = self._figures()
        labels = dict(zip(INFO, (seen["run"], seen["engine"], __version__), strict=True))
        yield self._families.InfoMetricFamily("fedmf_run", "Which run this is.", value=labels)
        for name, (_, meaning) in GAUGES.items():
            value = seen.get(name)
            if value is not None:
                value = value() if callable(value) else value
                yield self._families.GaugeMetricFamily(f"fedmf_{name}", f"{meaning}.", value=value)


class _Server(ThreadingHTTPServer):
    """A server whose threads nobody waits for, and which says nothing of a client that hangs up."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log what went wrong here: the run goes on without an answer."""
        if not isinstance(sys.exc_info()[1], OSError):
            log.warning("a question for the metrics could not be answered", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    """Answers GET on the known paths alone."""

    timeout = _PATIENCE
    server_version, sys_version = "fedmf", ""

    def answer(self, path: str) -> tuple[HTTPStatus, str, bytes] | None:
        """Return status, kind and content for `path`, None for one that there is not."""
        raise NotImplementedError

    def do_GET(self) -> None:
        """Answer a question."""
        found = self.answer(self.path.partition("?")[0])
        status, kind, content = found or (HTTPStatus.NOT_FOUND, "text/plain", b"/metrics or /health\n")
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log no question: a scrape every few seconds would fill the log."""
