"""The Flower ServerApp: wait for nodes, run the strategy."""

import time
from collections.abc import Callable

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedmf.errors import ParticipationError
from server.strategy import FedMF


def make_server_app(
    make_strategy: Callable[[Context], FedMF],
    *,
    min_nodes: int = 1,
    node_timeout: float = 600,
    round_timeout: float = 3600,
) -> ServerApp:
    """Return the ServerApp that runs the strategy of `make_strategy` once `min_nodes` nodes are connected.

    Timeouts are in seconds: for nodes to appear, and for the replies of one round.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        wait_for_nodes(grid, min_nodes, node_timeout)
        make_strategy(context).start(grid, timeout=round_timeout)

    return app


def wait_for_nodes(grid: Grid, count: int, timeout: float) -> None:
    """Return when `count` nodes are connected.

    Raises `ParticipationError` after `timeout` seconds without them.
    """
    deadline = time.monotonic() + timeout
    while (connected := len(list(grid.get_node_ids()))) < count:
        if time.monotonic() > deadline:
            raise ParticipationError(
                f"{connected} nodes were connected after {timeout:g} seconds; {count} are needed."
            )
        time.sleep(0.1)
