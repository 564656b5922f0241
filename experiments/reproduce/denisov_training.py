"""The one-pass experiments of Denisov et al. 2022: sizes, schedules of the learning rate, and the mechanisms compared.

Every client takes part once: one epoch, so that the optimum fitted to the whole run is the optimum fitted to the epoch. Only a
schedule that the epoch's workload does not hold makes the two differ.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product

from experiments.reproduce.accuracy_page import Subject
from experiments.reproduce.sgmf_training import BY_WRITER, WRITERS
from experiments.reproduce.study import Study
from experiments.reproduce.trials import Cell
from experiments.reproduce.tuning import Seeds
from experiments.reproduce.whole_run import COMMON, Task
from experiments.settings.factorization import factorize
from experiments.settings.mechanism import WorkloadName
from fedmf.mechanisms import RunFactorization

MOMENTUM = 0.9  # of the server, in `COMMON`
INDEPENDENT = "independent"
ONLINE = "honaker_online"
FULL = "honaker_full"
PREFIX = "optimal, prefix sums"
FITTED = "optimal, momentum"
COOLED = "optimal, momentum and cooldown"
MECHANISMS = {  # name: family, workload
    INDEPENDENT: ("independent", WorkloadName.prefix_sum),
    ONLINE: ("honaker_online", WorkloadName.prefix_sum),
    FULL: ("honaker_full", WorkloadName.prefix_sum),
    PREFIX: ("optimal", WorkloadName.prefix_sum),
    FITTED: ("optimal", WorkloadName.momentum),
    COOLED: ("optimal", WorkloadName.run),
}
# With a constant rate the workload of the run is that of momentum: it would be the same mechanism twice.
COMPARED = {"constant": tuple(name for name in MECHANISMS if name != COOLED), "cooldown": tuple(MECHANISMS)}
WORDS = {"constant": "constant rate", "cooldown": "cooldown"}


@dataclass(frozen=True)
class Size:
    """How much is computed: a task with cohorts and rounds, one pass; neighbouring epsilons begin each other's search.

    `dimension` are the parameters of the model.  `seeds` runs of each cell are made.  `held_out` is the share of the
    clients on whom rates are tuned, few enough for the others to fill all rounds.  `noise_multipliers` are those that a paper
    prints beside its epsilons; where there are any they are taken, and epsilon is a name.
    """

    task: Task
    dimension: int
    cohort: int
    rounds: int
    epsilons: tuple[float, ...]
    delta: str
    seeds: int = 10
    held_out: float = 0.15
    noise_multipliers: Mapping[float, float] = field(default_factory=dict)


SMALLER = "MNIST by writer, cut into 7,736 clients of at most 8 images (the unit of privacy is such a client, not the writer)"
SIZES = {
    "small": Size(
        Task("writers, logistic", f"{WRITERS}; logistic regression of 7,850 parameters",
             (*BY_WRITER, "model=logistic"), start=0.05, tuning=1, needs_data=True),
        dimension=7850, cohort=12, rounds=256, epsilons=(8.0, 4.0, 2.0, 1.0), delta="1e-5",
    ),
    "laptop": Size(
        Task("writers, mlp", f"{SMALLER}; a network with one hidden layer of 64 units, 50,890 parameters",
             (*BY_WRITER, "dataset.examples_per_client=8", "model=mlp", "model.hidden=64"), start=0.03, tuning=1, needs_data=True),
        dimension=50890, cohort=12, rounds=512, epsilons=(8.0, 4.0, 2.0, 1.0), delta="1e-5",
    ),
    "paper": Size(
        Task("stackoverflow, lstm", "Stack Overflow, next word of 342,477 users; a network of one LSTM layer, 4,053,428 parameters",
             (*COMMON, "dataset=stackoverflow", "dataset.max_examples_per_user=256", "client.batch_size=16", "model=lstm"),
             start=0.1, tuning=1, needs_data=True),
        dimension=4053428, cohort=160, rounds=2048, epsilons=(18.9, 8.2, 3.7, 1.7, 0.8), delta="1e-6", held_out=0.02,
        noise_multipliers={18.9: 0.341, 8.2: 0.682, 3.7: 1.364, 1.7: 2.728, 0.8: 5.456},
    ),
}  # fmt: skip


def cell(size: Size, schedule: str, mechanism: str, epsilon: float) -> Cell:
    """Return one entry of a table."""
    family, workload = MECHANISMS[mechanism]
    noise = size.noise_multipliers.get(epsilon)
    privacy = (
        (f"privacy.epsilon={epsilon:g}",)
        if noise is None
        else ("privacy.epsilon=null", f"privacy.noise_multiplier={noise:g}")
    )
    own = (
        f"population.cohort_size={size.cohort}",
        f"population.rounds_per_epoch={size.rounds}",
        "population.epochs=1",
        "compression.keep_probability=1",
        *privacy,
        f"privacy.delta={size.delta}",
        f"optimizer.schedule={schedule}",
        f"mechanism={family}",
        f"workload={workload}",
    )
    task = size.task
    return Cell(subject_name(size, schedule), mechanism, 1.0, epsilon, (*task.overrides, *own), task.needs_data)  # fmt: skip


def subject_name(size: Size, schedule: str) -> str:
    """Return what the part of the page with this schedule is called."""
    return f"{size.task.name}, {WORDS[schedule]}"


def study(size: Size) -> Study:
    """Return the work: a chain for each schedule and mechanism, from the largest epsilon on."""
    chains = tuple(
        tuple(cell(size, schedule, name, epsilon) for epsilon in size.epsilons)
        for schedule, names in COMPARED.items()
        for name in names
    )
    rows = tuple(
        tuple(cell(size, schedule, name, epsilon) for name in COMPARED[schedule])
        for schedule, epsilon in product(COMPARED, size.epsilons)
    )
    seeds = Seeds(tuple(range(100, 100 + size.task.tuning)), tuple(range(size.seeds)), size.held_out)
    return Study(chains, rows, size.task.start, seeds, more=())


def subject(size: Size, schedule: str) -> Subject:
    """Return the part of the page with this schedule."""
    cells = tuple(
        cell(size, schedule, name, epsilon) for name in COMPARED[schedule] for epsilon in size.epsilons
    )
    words = (
        f"{size.task.words}, cohorts of {size.cohort}, {size.rounds:,} rounds in which {size.cohort * size.rounds:,} "
        f"clients take part once, tested on other writers; {WORDS[schedule]}"
    )
    return Subject(subject_name(size, schedule), words, cells, size.seeds)


def factorization(size: Size, schedule: str, mechanism: str) -> RunFactorization:
    """Return a mechanism with the error that it leaves in the model, as a run with this schedule has it."""
    family, workload = MECHANISMS[mechanism]
    return factorize(family, workload, size.rounds, 1, beta=MOMENTUM, schedule=schedule)
