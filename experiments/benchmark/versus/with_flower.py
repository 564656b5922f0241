"""Rounds of Flower's own simulation engine: its federated averaging, without clipping, noise, rotation and masks.

One Ray worker runs all clients one after another, which costs least CPU; it keeps model and data, so that what is
measured besides training are the messages, their way through Ray and the mean.
"""

import os

from flower_client import ROW, app
from flwr.app import ArrayRecord, Context, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from work import CLIENTS, ROWS, Turns, build, main

_FOR_EVER = 1 << 30


class EndOfTurns(Exception):
    """No more rounds are wanted; `Strategy.start` has no other way to stop."""


def run_rounds(turns: Turns) -> None:
    """Run rounds until no more are wanted."""
    os.environ[ROW] = turns.row
    server, trained = ServerApp(), [0]

    def add(replies: list[RecordDict], weighted_by: str) -> MetricRecord:
        # What `FedAvg` asks for after training.
        trained[0] = sum(int(reply.metric_records["metrics"][weighted_by]) for reply in replies)  # type: ignore[arg-type, misc]
        return MetricRecord({weighted_by: trained[0]})

    def pause(number: int, arrays: ArrayRecord) -> None:
        if number > 0 and not turns(trained[0]):
            raise EndOfTurns

    @server.main()
    def train(grid: Grid, context: Context) -> None:
        averaging = FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS, train_metrics_aggr_fn=add)  # fmt: skip
        start = ArrayRecord(build(*ROWS[turns.row]).state_dict())
        try:
            averaging.start(grid, start, num_rounds=_FOR_EVER, evaluate_fn=pause)
        except EndOfTurns:
            return

    backend = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0},
        "init_args": {"num_cpus": 1, "address": "local"},
    }
    run_simulation(server, app, num_supernodes=CLIENTS, backend_config=backend)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(run_rounds)
