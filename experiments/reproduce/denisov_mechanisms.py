"""Figures 2, 3 and 6 of Denisov et al. 2022 in small: the mechanisms in one pass, with and without cooldown.

Independent noise, both of Honaker's estimators, and the optimal factorization fitted to prefix sums, to momentum, and to
momentum with the cooldown; on handwriting by writer, every client once, with the learning rate tuned for each.
"""

from pathlib import Path

from experiments.reproduce import Means, Reproduction
from experiments.reproduce.denisov_page import make
from experiments.reproduce.denisov_paper import dry_run
from experiments.reproduce.denisov_training import SIZES, Size
from experiments.reproduce.page import asked
from experiments.reproduce.tuning import FACTOR
from fedmf.checks import check_choice

NAME = "denisov_mechanisms"
HEAD = """
**What is compared.** Test accuracy after the last round at fixed epsilon, in one pass: every client takes part in at most one round, and the noise
never restarts. `honaker_online` is the tree of DP-FTRL with the estimator that uses the nodes below; `honaker_full` uses all nodes, by least
squares; neither hangs on what it is fitted to. `optimal, prefix sums` and `optimal, momentum` are the optimal factorizations of
Denisov et al., fitted to sums and to the server's momentum of 0.9, so that the momentum is inside the workload (`workload=prefix_sum`,
`workload=momentum`). All columns train with that momentum: where the noise does not know it, it is applied to what was released.
`independent` noise stands beside them. Epsilon is a property of the pass and not of the factorization: in a row of a table the noise
multiplier is the same.

**The cooldown.** The rate is constant for three quarters of the rounds, then falls in a straight line towards a twentieth over the
last quarter (`optimizer.schedule=cooldown`; the twentieth itself would be reached one round after the last).

**What we add.** Elsewhere it is noise that knows the whole run. In one pass there is no later epoch: with a constant rate `workload=run` is the very
mechanism of `workload=momentum`, to the bit, so that it is not run twice. With the cooldown it also knows how the rate falls,
and is the column `optimal, momentum and cooldown`; the other columns are fitted to constant rates.

**Beside the paper.** Figures 2, 3 and 6 of Denisov, McMahan, Rush, Smith, Thakurta (NeurIPS 2022) compare such mechanisms in one pass, with and
without the cooldown; their experiments are on Stack Overflow, next-word prediction, at five noise multipliers from .341 to 5.456, for
which epsilons of 18.9 to .8 are printed (docs/errata.md has the exact ones). The figures themselves were not at hand: no
accuracy of theirs, and no order of theirs, is held against ours, and which of the three shows what is
left open. What can be checked is what the theory says, that a mechanism whose error in the model is smaller should train the better
model: "The order beside that of the errors". Here it is ten classes of MNIST, told apart by writer, which is smaller and
easier and is NOT next-word prediction on Stack Overflow; model, cohort, rounds and epsilons are our choice.
"""
FOUND = {
    "small": """
The accuracies contradict the errors in one place only, the last named here. The optimum for momentum is above the tree's online estimator by 1
point at epsilon 8 and by 4 at epsilon 1, and does better than that at half the epsilon; independent noise is far below all. Most of what the
optimum is above the online estimator `honaker_full` gains too, though it needs every row of its noise and not a few buffers; putting the momentum into the
workload is worth .2 to .7 points. With a constant rate the optimum for prefix sums is told apart from `honaker_full` at epsilon 1 alone:
its error is less by a sixth over all rounds, but by 3 % after the last one, and it is the last model that is scored. The cooldown brings the
trees and the optima .2 to .9 points; of independent noise it takes 8 % after the last round, but 12 % of the sum of all rates, and costs it .2
to .9 points. That the mechanism knows the cooldown is worth nothing: its error over all rounds is .2 % less, after the last round 2 %
more, and its accuracy is lower by up to .1 points, which runs of the same seed tell apart at every epsilon: there the mechanism
of smaller error over all rounds trains the worse last model. What
`workload=run` adds over several epochs (docs/results/whole_run.md) is not there in one pass.
""",
    "laptop": """
The same as in small, and clearer, with twice the rounds and a hidden layer. The accuracies contradict the errors in one place only, the
last named here. The optimum for momentum is above the tree's online estimator by 2.6 points at epsilon 8 and by 5 to 6 at epsilon 1, and does better
than that at half the epsilon; independent noise at epsilon 8 is below that optimum at epsilon 1. `honaker_full`, which needs every row of its noise, gains more
than half of the way from the one tree to that optimum at a constant rate, a third to seven tenths of it with the cooldown; putting the momentum into the workload is worth .5 to .9 points.
With a constant rate the optimum for prefix sums is above `honaker_full` by no more than .6 points, and at epsilon 4 not at all: its error is less by a
sixth over all rounds, but 1.4 % more after the last one, and it is the last model that is scored. With the cooldown it is less by 16 % there
too, and the optimum is .6 to .9 points above. The cooldown brings the trees and the optima .1 to 2 points, and takes up to half a point from independent noise. That the
mechanism knows the cooldown costs .1 points at every epsilon, as in small: its error over all rounds is .2 % less, after
the last round 2 % more.
""",
}


def reproduce(directory: Path, means: Means) -> Reproduction:
    """Make the runs that are missing, and return their table; the page and its plot go to `directory`."""
    name = means.size or next(iter(SIZES))
    check_choice("size", name, SIZES)
    size = SIZES[name]
    if name == "paper":
        return dry_run(size)
    head = (*_made_by(name), "", HEAD.strip(), "", tuning(size), "")
    return make(directory, means, NAME, name, (*head, FOUND.get(name, "")))


def _made_by(size_name: str) -> tuple[str, ...]:
    return (
        f"Made by `python -m experiments.reproduce name={NAME}{asked(size_name, next(iter(SIZES)))} directory=docs/results workers=2 data=mnist_by_writer.npz`, which goes on",
        f"where it was cut short; `compute=false` only writes this page again. Every line of {NAME}.jsonl is one run; the data are described in [docs/data.md](../data.md#the-files-of-the-experiments).",
        "`size=laptop` trains a network with a hidden layer on smaller clients for 512 rounds, in some 10 CPU seconds a run and 2 CPU hours in all;",
        "`size=paper` trains nothing: it builds and accounts runs on Stack Overflow, and says what they would take.",
    )


def tuning(size: Size) -> str:
    """Return how learning rates are tuned, seeds chosen and runs made."""
    return f"""
**How the learning rate was tuned.** In the same way for every column, schedule and epsilon on its own, on a grid of factors of {FACTOR:g}. A rate is
scored with {size.task.tuning} seed that no table shows: {size.held_out:.0%} of the training clients, drawn by that public seed, are held out, the others
train (as many rounds and cohorts as large, of the clients left), and the held-out clients' examples give the accuracy after the last round. The
search begins at the best rate of the next larger epsilon (at the largest {size.task.start:g}) and goes to the better neighbour until neither is better.
No rate is chosen by the test split. That the choice was made with noise is not in the standard errors. The clients' learning rate 1,
the clip norm 1, cohorts and rounds are fixed and the same for all.

**Seeds.** {size.seeds} runs of each. Runs of the same seed share cohorts, initial model, order of the data and the noise before it is correlated,
also between the schedules; differences are therefore also shown run by run.

**What a run is.** The product's own pipeline, as `simulate` runs it. Secrets derive from the seed, so that the same code computes every number
again: these runs protect nobody, and choosing a learning rate by accuracy is not covered by epsilon. Zero-out adjacency, delta {size.delta}, all values
sent (keep probability 1).
""".strip()
