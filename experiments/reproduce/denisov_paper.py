"""The size `paper` of the one-pass experiments: every cell is composed, built and accounted, and nothing is trained."""

from collections.abc import Iterator

from client.data import Dataset
from client.data.dataset import NEXT_TOKEN, stand_in
from experiments.reproduce import Cell, Reproduction
from experiments.reproduce.denisov_training import COMPARED, COOLED, WORDS, Size, cell
from experiments.reproduce.page import once
from experiments.settings.compose import compose
from experiments.settings.experiment import build
from experiments.settings.schema import Settings
from fedmf.accounting import gaussian_epsilon
from fedmf.errors import DataError

USERS, TOKENS, LENGTH = 342477, 10004, 20  # of Stack Overflow, with 10,000 words and four special tokens
TRIALS = (
    4  # that a search of a rate takes at least, from where a neighbour's ended: about what it took in `small`
)
COLUMNS = (
    "schedule",
    "mechanism",
    "printed epsilon",
    "exact epsilon",
    "noise multiplier",
    "error in the model",
    "bytes of values",
)


def dry_run(size: Size) -> Reproduction:
    """Return what each cell would be, and how much all would be; raises a `FedmfError` for what could not run as asked."""
    rows = tuple(_rows(size))
    runs = len(rows) * (size.seeds + TRIALS * size.task.tuning)
    rounds = runs * size.rounds
    notes = (
        "The noise multipliers are those that the paper prints; the epsilons that it prints beside them come from integer Rényi orders, the exact ones are less.",
        "Composed, built and accounted; nothing was trained, and no page written. The data are stood in for by blank sentences.",
        "The error in the model is its root mean square over the rounds, in units of rate times noise multiplier times clip norm over the cohort's size.",
        f"It would take about {runs:,} runs with tuning, {rounds:,} rounds and {rounds * size.cohort:,} trainings of a client.",
        "Set dataset.path and dataset.vocabulary to Stack Overflow's files with `simulate` to train one of them: "
        f"{' '.join(once(cell(size, 'cooldown', COOLED, size.epsilons[0]).overrides))}",
    )
    return Reproduction("Mechanisms in one pass: a dry run", COLUMNS, rows, None, notes)


def _rows(size: Size) -> Iterator[tuple[Cell, ...]]:
    dataset = blank(size)
    for schedule, mechanisms in COMPARED.items():
        for mechanism in mechanisms:
            for epsilon in size.epsilons:
                overrides = (*cell(size, schedule, mechanism, epsilon).overrides, "seed=0")
                plan = build(compose("config", overrides, Settings), dataset).plan
                if plan.dimension != size.dimension:
                    raise DataError(
                        f"the model has {plan.dimension} parameters; the size says {size.dimension}."
                    )
                exact = gaussian_epsilon(1 / plan.noise_multiplier, float(size.delta))
                error = plan.factorization.rms_error
                yield (
                    WORDS[schedule],
                    mechanism,
                    epsilon,
                    exact,
                    plan.noise_multiplier,
                    error,
                    plan.value_bytes,
                )


def blank(size: Size) -> Dataset:
    """Return a data set in the shape of Stack Overflow, less the users on whom rates would be tuned, all sentences blank."""
    sentence = stand_in((LENGTH,), NEXT_TOKEN)
    clients = [sentence] * (USERS - int(size.held_out * USERS))
    return Dataset(
        "stackoverflow", clients, sentence, (LENGTH,), TOKENS, NEXT_TOKEN, "none", "blank sentences", "one user",
        notes=("All sentences are blank.",),
    )  # fmt: skip
