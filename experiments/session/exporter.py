"""A run's figures for Prometheus, and whether it goes on, over HTTP on the loopback interface of this machine.

    GET /metrics    the figures of `session.figures`, in Prometheus' format
    GET /health     one JSON object: 200 while rounds end in time, 503 when none has for too long

Off unless run.metrics_port is given; the package is an extra. Every request has a thread of its own, which reads one value
that the run has put there: nothing here holds what a round needs. The server ends with the run, whatever a client of it does.
"""

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType
from typing import Any

from client.imports import need
from experiments.session.figures import GAUGES, INFO, Figures, health
from experiments.session.watched import Watch
from experiments.settings.engine import DeploymentSettings
from experiments.settings.experiment import Experiment
from experiments.settings.schema import Settings
from fedmf.errors import SettingError
from fedmf.version import __version__
from server.cohort import Population

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
_PATIENCE = 5.0  # seconds for whoever asks to say what, and to take the answer
_PAUSE = 0.1  # seconds after which the end of a run is noticed
_JSON = "application/json"


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
        labels = dict(zip(INFO, (seen.run, seen.engine, __version__), strict=True))
        yield self._families.InfoMetricFamily("fedmf_run", "Which run this is.", value=labels)
        for gauge in GAUGES:
            if (value := gauge.value(seen)) is not None:
                yield self._families.GaugeMetricFamily(gauge.name, f"{gauge.meaning}.", value=value)


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
