"""Flower's Ray engine: the same apps, in processes that Ray starts."""

import contextlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event, Lock
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from experiments.players.failures import OnFailure, Witness, ignore_failure, without_failures
from experiments.players.parts import MESSAGES_A_WORKER
from experiments.players.progress import ClientCount
from experiments.players.ray_workers import RayWorkers
from fedmf.errors import RunStoppedError


def run_on_ray(
    server_app: ServerApp,
    client_app: ClientApp,
    workers: RayWorkers,
    on_failure: OnFailure = ignore_failure,
    count: ClientCount | None = None,
) -> None:
    """Run the apps on Flower's Ray engine, whose clients `workers` play.

    `on_failure` is told of each client that `with_failures` put into a reply, or whose reply is an error, `count` of how
    many clients have been asked and heard. Raises `RunStoppedError` when no worker is left.

    Flower runs the ServerApp in a thread and does not wait for it when Ctrl-C or an error ends the engine: here
    that thread has ended in any case, so that nothing is released once this returns or raises.
    """
    from flwr.simulation import run_simulation

    stop, running = workers.lost, Lock()
    try:
        with _as_flowers_backend(workers):
            run_simulation(
                until_stopped(server_app, stop, running, on_failure, count), client_app, nodes_for(workers)
            )
    finally:
        is_lost = workers.lost.is_set()
        stop.set()
        with running:  # the round under way is released or dropped by now
            pass
    if is_lost:
        why = f" ({workers.why})" if workers.why else ""
        raise RunStoppedError(
            f"no worker of the Ray cluster is left, and none could begin again{why}; nothing of the round was released. "
            "When there is room again, go on with run.resume=true."
        )


def nodes_for(workers: RayWorkers) -> int:
    """Return how many of Flower's nodes deal out the messages: it hands each node one every tenth of a second."""
    return MESSAGES_A_WORKER * workers.count


@contextlib.contextmanager
def _as_flowers_backend(workers: RayWorkers) -> Iterator[None]:
    """Let Flower's engine hand messages to `workers`, all of them at a time.

    Flower 1.41 has no setting for either: it names its backend in one place, and plays at most 4 messages more at a time
    than this machine has cores, which says nothing of a cluster. tests/experiments/players/test_ray_engine.py names the version.
    """
    from flwr.server.superlink.fleet.vce import vce_api
    from flwr.server.superlink.fleet.vce.backend import raybackend

    from experiments.players.ray_backend import WorkersBackend

    places = (raybackend, "RayBackend"), (vce_api, "ThreadPoolExecutor")
    before = [getattr(module, name) for module, name in places]
    ours = (lambda config: WorkersBackend(workers)), partial(ThreadPoolExecutor, workers.count)
    try:
        for (module, name), instead in zip(places, ours, strict=True):
            setattr(module, name, instead)
        yield
    finally:
        for (module, name), theirs in zip(places, before, strict=True):
            setattr(module, name, theirs)


def until_stopped(
    server_app: ServerApp,
    stop: Event,
    running: Lock,
    on_failure: OnFailure = ignore_failure,
    count: ClientCount | None = None,
) -> ServerApp:
    """Return `server_app` as one that ends at its next use of the grid once `stop` is set.

    It holds `running` meanwhile, and sees replies without what `with_failures` put into them.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        with running:
            server_app(_WatchedGrid(grid, stop, on_failure, count), context)  # type: ignore[arg-type]

    return app


class _WatchedGrid:
    """A Grid that ends the thread that uses it once `stop` is set, and tells of the clients that failed."""

    takes_rounds = True  # one call has all messages of a round, and its clients are those who are counted

    def __init__(
        self, grid: Grid, stop: Event, on_failure: OnFailure, count: ClientCount | None = None
    ) -> None:
        self._grid = grid
        self._stop = stop
        self._witness = Witness(on_failure, count)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send the messages; returns their ids."""
        self._end_if_stopped()
        pushed = list(messages)
        sent = list(self._grid.push_messages(pushed))
        self._witness.asked(pushed)
        return sent

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return replies, each as the client app made it."""
        self._end_if_stopped()
        replies = list(self._grid.pull_messages(message_ids))
        self._end_if_stopped()  # where no worker was left, the replies say only that
        self._witness.heard(replies, [failure for reply in replies for failure in without_failures(reply)])
        return replies

    def __getattr__(self, name: str) -> Any:
        self._end_if_stopped()
        return getattr(self._grid, name)

    def _end_if_stopped(self) -> None:
        if self._stop.is_set():
            raise SystemExit  # no Exception, which would count as a client's unreadable reply
