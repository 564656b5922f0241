"""Flower's Ray engine: the same apps, in processes that Ray starts."""

from threading import Event, Lock
from typing import Any

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedmf.errors import SettingError


def run_on_ray(server_app: ServerApp, client_app: ClientApp, workers: int) -> None:
    """Run the apps on Flower's Ray engine with `workers` supernodes. Raises `SettingError` without it.

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
            until_stopped(server_app, stop, running),
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


def until_stopped(server_app: ServerApp, stop: Event, running: Lock) -> ServerApp:
    """Return `server_app` as one that ends at its next use of the grid once `stop` is set.

    It holds `running` meanwhile.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        with running:
            server_app(_StoppableGrid(grid, stop), context)  # type: ignore[arg-type]

    return app


class _StoppableGrid:
    """A Grid that ends the thread that uses it once `stop` is set."""

    def __init__(self, grid: Grid, stop: Event) -> None:
        self._grid = grid
        self._stop = stop

    def __getattr__(self, name: str) -> Any:
        if self._stop.is_set():
            raise SystemExit  # no Exception, which would count as a client's unreadable reply
        return getattr(self._grid, name)
