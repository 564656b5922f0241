"""The parts of a run's page about its noise: the error of the accumulated updates by round, relative and absolute."""

from collections.abc import Iterator, Sequence
from typing import Any

from experiments.pages.figures import LinePlot, Series
from experiments.pages.page import Plot, Section
from experiments.pages.wording import number
from experiments.run_files.directory import CONFIG, MECHANISM
from experiments.run_files.reader import Run
from fedmf.errors import RunDirectoryError

TITLE = "Noise against independent noise"


def mechanism_sections(run: Run) -> Iterator[Section]:
    """Yield the noise in the accumulated updates by round: against other mechanisms, and in units of the model."""
    released = int(run.summary["rounds"])
    yield relative_section(run.mechanism, released)
    scaled = (run.config.get("optimizer") or {}).get("precondition")  # clients scale their coordinates apart
    if run.mechanism.get("update_noise_std") is not None and not scaled:
        yield absolute_section(run, released)


def relative_section(mechanism: dict[str, Any], released: int) -> Section:
    """Return the noise in the model against independent noise and the certificate, by round of the whole run.

    Of a run that ended after `released` rounds these are shown: its noise was designed for rounds that did not come.
    """
    if not mechanism:
        return Section(TITLE, [f"The run directory holds no {MECHANISM}, so there is nothing to compare."])
    planned = len(mechanism["per_round_error"])
    own, independent = (
        mechanism[name][:released] for name in ("per_round_error", "independent_per_round_error")
    )
    if not own or len(own) != len(independent):
        raise RunDirectoryError(
            f"{MECHANISM} holds {len(own)} rounds of per_round_error and {len(independent)} of independent_per_round_error; "
            "they must be as many."
        )
    rounds = range(1, len(own) + 1)
    series = [Series(str(mechanism["family"]), rounds, own), Series("independent", rounds, independent)]
    best = mechanism.get("lowest_rms_error") if released == planned else None
    if best is not None:
        series.append(Series("least possible (RMS)", rounds, [best] * len(own)))
    early = (
        ""
        if released == planned
        else f" The noise was designed for {planned} rounds: for the {released} that were released it is as private, but "
        "another design would have left less noise."
    )
    gain = root_mean_square(independent) / root_mean_square(own)
    caption = (
        "Standard deviation of the noise in the accumulated updates after each round, over noise multiplier times "
        "clip norm and the first learning rate: the server's momentum and schedule counted, and what earlier epochs "
        f"left. Root mean square (RMS) over the run: {number(root_mean_square(own))} for {mechanism['family']}, "
        f"{number(root_mean_square(independent))} for independent noise at the same privacy, {number(gain)} times as "
        f"much{_above(root_mean_square(own), best)}.{early} From {MECHANISM}: per_round_error."
    )
    drawing = LinePlot(series, "round", "noise std (relative)", y_from=0)
    return Section(TITLE, figure=Plot("noise", drawing, caption, "noise_by_round"))


def absolute_section(run: Run, released: int) -> Section:
    """Return the standard deviation of the noise on one coordinate of the accumulated updates, by round.

    `update_noise_std` of mechanism.json is z Delta_2/(gamma n), that of one independent round on the mean update; times
    the relative error of a round it is that of the sum of all mean updates so far. Where the optimizer is gradient
    descent and nothing else, the model moves by the learning rate times that sum, and the noise in it is said so.
    """
    mechanism, optimizer = run.mechanism, run.config.get("optimizer") or {}
    rate = plain_learning_rate(optimizer)
    scale = mechanism["update_noise_std"] * (1.0 if rate is None else rate)
    errors = [scale * error for error in mechanism["per_round_error"][:released]]
    if rate is not None:
        where, unit, source = "the model", "model", f"; {CONFIG}: optimizer.learning_rate"
    else:
        where, unit, source = "the accumulated mean updates", "update", ""
    left_aside = (
        ""
        if rate is not None
        else f" Momentum and schedule are counted; what {optimizer.get('name', 'the optimizer')} makes of the sum besides "
        "is not."
    )
    caption = (
        f"Standard deviation of the noise on each coordinate of {where}: {number(errors[0])} after the first round, "
        f"{number(errors[-1])} after the last, {number(root_mean_square(errors))} root mean square over the run.{left_aside} "
        f"One independent round would leave {number(mechanism['update_noise_std'])} on a coordinate of the mean update. "
        f"From {MECHANISM}: per_round_error, update_noise_std{source}."
    )
    drawing = LinePlot(
        [Series("noise", range(1, len(errors) + 1), errors)],
        "round",
        f"noise std ({unit} units)",
        y_from=0,
    )
    plot = Plot("error", drawing, caption, "absolute_noise_by_round")
    return Section(f"Noise in {where}", figure=plot)


def plain_learning_rate(optimizer: dict[str, Any]) -> float | None:
    """Return the learning rate of an optimizer that adds it times the accumulated updates to the model, else None.

    The mechanism's errors count momentum and schedule; Nesterov's form, weight decay and adaptive rates they do not.

    >>> plain_learning_rate({"name": "sgd", "learning_rate": 0.5, "momentum": 0.9})
    0.5
    >>> plain_learning_rate({"name": "sgd", "learning_rate": 0.5, "nesterov": True})
    >>> plain_learning_rate({"name": "adam", "learning_rate": 0.5})
    """
    more = optimizer.get("nesterov") or optimizer.get("weight_decay")
    if optimizer.get("name") != "sgd" or more:
        return None
    rate = optimizer.get("learning_rate")
    return float(rate) if isinstance(rate, int | float) else None


def root_mean_square(values: Sequence[float]) -> float:
    """Return the square root of the mean square."""
    return float((sum(value * value for value in values) / len(values)) ** 0.5)


def _above(own: float, best: float | None) -> str:
    """Return how far the error is above the certified least of all that restart, with equal noise in every epoch."""
    if best is None:
        return ""
    above = 100 * (own / best - 1)
    share = "less than 0.01 %" if above < 0.01 else f"{above:.2g} %"
    return f"; with equal noise in every epoch no mechanism that restarts has less than {number(best)}, and this one is {share} above"
