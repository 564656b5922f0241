"""Rounds of our simulation, with clipping, rotation, masks and noise: `python -m experiments.benchmark.versus.ours`."""

from experiments.benchmark.rows import Federation, simulated_round
from experiments.benchmark.versus.work import CLIENTS, EXAMPLES, ROWS, Turns, main


def run_rounds(turns: Turns) -> None:
    """Run rounds until no more are wanted."""
    round_ = simulated_round(Federation(*ROWS[turns.row]))
    round_()
    while turns(CLIENTS * EXAMPLES):
        round_()


if __name__ == "__main__":
    main(run_rounds)
