"""The page of the one-pass experiments of Denisov et al. 2022: accuracy beside the exact error of each mechanism.

Made of whatever runs there are. What a mechanism leaves in the model follows from its factorization, without a run.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.reproduce import Cell, Means, Reproduction, Section, page as pages
from experiments.reproduce.accuracy_page import COLUMNS, Comparison, as_rows, difference, section
from experiments.reproduce.denisov_plot import draw
from experiments.reproduce.denisov_training import (
    COMPARED,
    COOLED,
    FITTED,
    FULL,
    MECHANISMS,
    ONLINE,
    PREFIX,
    SIZES,
    WORDS,
    Size,
    factorization,
    study,
    subject,
)
from experiments.reproduce.results import Results
from experiments.reproduce.sgmf_page import is_finished, runs_made, what_it_took
from experiments.reproduce.study import is_paired_above, order
from fedmf.accounting import calibrate_noise_multiplier
from server.files import write_atomically

TITLE = "One pass over the data: trees, optima, momentum and cooldown"
STEPS = ((FULL, ONLINE), (PREFIX, FULL), (FITTED, PREFIX), (COOLED, FITTED))
COMPARISONS = {"constant": Comparison(FITTED, PREFIX), "cooldown": Comparison(COOLED, FITTED)}


def make(directory: Path, means: Means, name: str, size_name: str, words: Sequence[str]) -> Reproduction:
    """Make the runs that are missing, then the page and its plot in `directory`; return its table.

    `words` are the paragraphs above the plot and, last, what is found, which stands there when every run has ended.
    """
    size = SIZES[size_name]
    work = study(size)
    results = runs_made(directory / f"{name}.jsonl", work, means, name, needs_data=size.task.needs_data)
    subjects = [subject(size, schedule) for schedule in COMPARED]
    stem = pages.stem(name, means, next(iter(SIZES)))
    figure = draw(directory / f"{stem}.png", size, results)
    *head, found = words
    all_there = all(is_finished(one, results) for one in subjects)
    lines = [
        *(f"# {TITLE}", ""),
        *head,
        *(f"![Test error against epsilon, and the noise in the model by round]({figure.name})", ""),
        *("Above: mean over seeds; bands are one standard error. Below: computed exactly, see \"The noise in the model\".", ""),
        *((f"**What we find.** {found.strip()}", "") if all_there and found else ()),
        *(line for schedule, one in zip(COMPARED, subjects, strict=True)
          for line in section(one, COMPARISONS[schedule], results)),
        *_tables(size, results),
        *what_it_took(work, results),
    ]  # fmt: skip
    write_atomically(directory / f"{stem}.md", ("\n".join(lines).rstrip() + "\n").encode())
    return Reproduction(TITLE, COLUMNS, as_rows(subjects, results), None, (), (figure,))


def _tables(size: Size, results: Results) -> Iterator[str]:
    for part in (
        steps_table(size, results),
        cooldown_table(size, results),
        order_table(size, results),
        error_table(size),
        noise_table(size),
    ):
        yield from pages.section(part)


def accuracies(
    size: Size, results: Results, schedule: str, mechanism: str, epsilon: float
) -> dict[int, float]:
    """Return the test accuracy of a cell by seed; empty without any run, or where the schedule lacks the mechanism."""
    if mechanism not in COMPARED[schedule]:
        return {}
    return results.final(subject(size, schedule).cell(mechanism, 1.0, epsilon))[1]


def steps_table(size: Size, results: Results) -> Section:
    """Return the table of differences from one mechanism to the next better one, run by run of the same seed."""
    rows = tuple(
        (WORDS[schedule], f"{epsilon:g}", *(
            difference(
                accuracies(size, results, schedule, above, epsilon), accuracies(size, results, schedule, below, epsilon)
            )
            for above, below in STEPS
        ))
        for schedule in COMPARED
        for epsilon in size.epsilons
    )  # fmt: skip
    return Section(
        "From one mechanism to the next",
        "Mean difference of test accuracies in percent between runs of the same seed, with its standard error:",
        ("schedule", "epsilon", *(f"{above} − {below}" for above, below in STEPS)),
        rows,
    )


def cooldown_table(size: Size, results: Results) -> Section:
    """Return the table of what the cooldown brings each mechanism, run by run of the same seed."""
    names = COMPARED["constant"]
    rows = tuple(
        (f"{epsilon:g}", *(
            difference(
                accuracies(size, results, "cooldown", name, epsilon), accuracies(size, results, "constant", name, epsilon)
            )
            for name in names
        ))
        for epsilon in size.epsilons
    )  # fmt: skip
    return Section(
        "What the cooldown brings",
        "Accuracy with the cooldown less that with a constant rate, in percent, between runs of the same seed, each at its own best rate:",
        ("epsilon", *names),
        rows,
    )


def order_table(size: Size, results: Results) -> Section:
    """Return the order of the mechanisms by accuracy, and where it contradicts that of their errors."""
    rows = []
    for schedule in COMPARED:
        errors = {name: factorization(size, schedule, name).rms_error for name in COMPARED[schedule]}
        for epsilon in size.epsilons:
            found = {name: accuracies(size, results, schedule, name, epsilon) for name in errors}
            rows.append((WORDS[schedule], f"{epsilon:g}", order(found), against(found, errors)))
    return Section(
        "The order beside that of the errors",
        "Here > means that the mean difference between runs of the same seed is two of its standard errors or more, ≈ that it is less.\n"
        "The last column names mechanisms of larger root mean square error "
        "whose accuracy is higher all the same, by the same rule.",
        ("schedule", "epsilon", "order of accuracy", "against the order of the errors"),
        tuple(rows),
    )  # fmt: skip


def against(found: dict[str, dict[int, float]], errors: dict[str, float]) -> str:
    """Return who is told to be above another one whose error is smaller, in words; a dash if nobody is."""
    known = {name: item for name, item in found.items() if item}
    contrary = [
        f"`{above}` above `{below}`"
        for above in known
        for below in known
        if is_paired_above(known[above], known[below]) and errors[above] > errors[below]
    ]
    return "; ".join(contrary) or pages.NONE


def error_table(size: Size) -> Section:
    """Return the table of the exact errors: root mean square over the rounds, and after the last one."""
    columns: list[str] = ["mechanism"]
    by_schedule = {}
    for schedule, names in COMPARED.items():
        runs = {name: factorization(size, schedule, name) for name in names}
        best = (
            min(run.rms_error for run in runs.values()),
            min(float(run.per_round_error[-1]) for run in runs.values()),
        )
        by_schedule[schedule] = {
            name: (run.rms_error, float(run.per_round_error[-1]), *best) for name, run in runs.items()
        }
        columns += [f"{WORDS[schedule]}: all rounds", "over the least", "last round", "over the least"]
    rows = tuple((name, *(cell for known in by_schedule.values() for cell in _errors(known.get(name))))
                 for name in MECHANISMS)  # fmt: skip
    return Section(
        "The noise in the model",
        "Standard deviation of a coordinate of the noise that the model holds, in units of the first learning rate times noise multiplier times clip\n"
        "norm over the cohort's size, at the momentum and schedule of the runs: root mean square over all rounds, which the optimum makes\n"
        "least, and after the last round, whose model is the one that is scored. Computed exactly, without any run. At one rate; tuning may choose another for each.",
        tuple(columns),
        rows,
    )  # fmt: skip


def _errors(known: tuple[float, float, float, float] | None) -> tuple[Cell, ...]:
    if known is None:
        return (None,) * 4
    rms, last, least_rms, least_last = known
    return (f"{rms:.2f}", f"{rms / least_rms:.3f}", f"{last:.2f}", f"{last / least_last:.3f}")


def noise_table(size: Size) -> Section:
    """Return the table of noise multipliers, the same for all mechanisms."""
    rows = tuple(
        (f"{epsilon:g}", f"{noise_multiplier(size, epsilon):.4g}", f"{noise_multiplier(size, epsilon) / size.cohort:.4g}")
        for epsilon in size.epsilons
    )  # fmt: skip
    return Section(
        "The noise multiplier",
        f"One release of the Gaussian mechanism, accounted exactly at delta {size.delta}; over the cohort's size it is what the mean of one round holds, "
        "relative to the\nsensitivity and the clip norm.",
        ("epsilon", "noise multiplier", "over the cohort's size"),
        rows,
    )  # fmt: skip


def noise_multiplier(size: Size, epsilon: float) -> float:
    """Return the noise multiplier of one pass, relative to the sensitivity.

    >>> round(noise_multiplier(SIZES["small"], 1.0), 4)
    3.7306
    """
    return calibrate_noise_multiplier(
        epsilon=epsilon, delta=float(size.delta), keep_probability=1.0, linf_over_l2=1.0, epochs=1
    )
