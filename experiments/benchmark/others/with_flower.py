"""Rounds of Flower's own simulation engine: its federated averaging, without clipping, noise, rotation and masks.

One Ray worker plays all clients one after another, which costs least CPU; it keeps model and data, so that what is
measured beside training are the messages, their way through Ray and the mean.
"""

import os
import sys

import torch
from flower_client import WORK_FOLDER, app
from flwr.app import ArrayRecord, Context, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from turns import Turns
from work import Work, read

_FOR_EVER = 1 << 30


class EndOfTurns(Exception):
    """No more rounds are asked for; `Strategy.start` has no other way to stop."""


class Rounds:
    """Counts the examples of a round from the replies, and waits after it until the benchmark asks for the next."""

    def __init__(self, turns: Turns) -> None:
        """Report to `turns`."""
        self._turns, self._trained = turns, 0

    def add(self, replies: list[RecordDict], weighted_by: str) -> MetricRecord:
        """Count the examples in the metrics of all replies, which is what `FedAvg` asks for after training."""
        self._trained = 0
        for reply in replies:
            trained = reply.metric_records["metrics"][weighted_by]
            assert isinstance(trained, int)
            self._trained += trained
        return MetricRecord({weighted_by: self._trained})

    def pause(self, number: int, arrays: ArrayRecord) -> None:
        """Wait after round `number`, which is 0 before the first."""
        if number > 0 and not self._turns(self._trained):
            raise EndOfTurns
        self._trained = 0


def play(work: Work, turns: Turns) -> None:
    """Play rounds until no more are asked for."""
    server, rounds = ServerApp(), Rounds(turns)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        """Train until the benchmark has seen enough."""
        strategy = FedAvg(
            fraction_evaluate=0.0,
            min_train_nodes=work.clients,
            min_available_nodes=work.clients,
            train_metrics_aggr_fn=rounds.add,
        )
        try:
            strategy.start(
                grid,
                ArrayRecord(work.model().state_dict()),
                num_rounds=_FOR_EVER,
                evaluate_fn=rounds.pause,
            )
        except EndOfTurns:
            return

    resources = {"num_cpus": 1, "num_gpus": 0}
    backend = {"client_resources": resources, "init_args": {"num_cpus": 1, "address": "local"}}
    run_simulation(server, app, num_supernodes=work.clients, backend_config=backend)  # type: ignore[arg-type]


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.environ[WORK_FOLDER] = sys.argv[1]
    work = read(sys.argv[1])
    play(work, Turns(len(work.start)))
