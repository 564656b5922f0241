"""Flower's Ray engine: the same apps, in processes that Ray starts."""

from collections.abc import Iterable
from threading import Event, Lock
from typing import Any

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from experiments.players.failures import Failure, OnFailure, Witness, ignore_failure
from experiments.players.progress import ClientCount
from fedmf.errors import SettingError

_FAILED = "failed"  # a private record of a reply, which the strategy does not get to see


def run_on_ray(
    server_app: ServerApp,
    client_app: ClientApp,
    workers: int,
    on_failure: OnFailure = ignore_failure,
    count: ClientCount | None = None,
) -> None:
    """Run the apps on Flower's Ray engine with `workers` supernodes. Raises `SettingError` without it.

    `on_failure` is told of each client that `with_failures` put into a reply, or whose reply is an error, `count` of how
    many clients have been asked and heard.

    Flower runs the ServerApp in a thread and does not wait for it when Ctrl-C or an error ends the engine: here
    that thread has ended in any case, so that nothing is released once this returns or raises.
    """
    try:
        from flwr.simulation import run_simulation
    except ImportError as error:
        raise SettingError(
            "engine is ray, but Ray is not installed; install the extra: pip install 'fedmf[ray]'."
        ) from error
    stop, running = Event(), Lock()
    try:
        run_simulation(
            until_stopped(server_app, stop, running, on_failure, count),
            client_app,
            workers,
            backend_config={
                "client_resources": {"num_cpus": 1.0, "num_gpus": 0.0},
                "init_args": {"num_cpus": workers, "include_dashboard": False, "log_to_driver": False},
            },
        )
    finally:
        stop.set()
        with running:  # the round under way is released or dropped by now
            pass


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


def with_failures(reply: Message, failures: list[Failure]) -> Message:
    """Return `reply` with a record of the clients that failed, for `run_on_ray` to take out again."""
    if failures and reply.has_content():
        clients, reasons = (
            [getattr(failure, field) for failure in failures] for field in ("client", "reason")
        )
        reply.content[_FAILED] = ConfigRecord({"clients": clients, "reasons": reasons})
    return reply


def without_failures(reply: Message) -> list[Failure]:
    """Take the record of `with_failures` out of `reply`, and return what it held."""
    if not reply.has_content() or _FAILED not in reply.content:
        return []
    record: Any = reply.content.config_records[_FAILED]
    del reply.content[_FAILED]
    return list(map(Failure, record["clients"], record["reasons"]))


class _WatchedGrid:
    """A Grid that ends the thread that uses it once `stop` is set, and tells of the clients that failed."""

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
        self._witness.heard(replies, [failure for reply in replies for failure in without_failures(reply)])
        return replies

    def __getattr__(self, name: str) -> Any:
        self._end_if_stopped()
        return getattr(self._grid, name)

    def _end_if_stopped(self) -> None:
        if self._stop.is_set():
            raise SystemExit  # no Exception, which would count as a client's unreadable reply
