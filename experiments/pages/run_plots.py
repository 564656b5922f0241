"""The plots of a run's page: scores, epsilon, noise and bytes by round."""

import math
from itertools import accumulate

from client.metric_names import ALWAYS, BETTER_IF_LARGER
from experiments.pages.fields import text_of, unit_of, words_of
from experiments.pages.figures import MOST_MARKERS, LinePlot, Series
from experiments.pages.page import Section
from experiments.pages.wording import bound, number, size
from experiments.run_files.directory import CONFIG, MECHANISM, METRICS, PRIVACY, SUMMARY
from experiments.run_files.reader import Run
from fedmf.errors import RunDirectoryError

FLOAT_BYTES = 4
LARGEST = 1e100  # noise that can be drawn


def scored_section(run: Run, name: str) -> Section:
    """Return a metric on the test set by round."""
    title = f"{name.capitalize() if name in ALWAYS else name} by round"
    rounds, values = run.column(name)
    if not rounds:
        return Section(title, [f"{METRICS} contains no round with a value of {name}."])
    entry, unit = run.further_metrics.get(name, name), unit_of(name)
    words = [f"{words_of(name, entry)} after round {rounds[-1]:,}: {text_of(name, values[-1])}"]
    scored = sum(name in line for line in run.rounds)
    if len(rounds) < scored:
        words.append(f"without a value in {scored - len(rounds)} of {scored} rounds")
    if name in BETTER_IF_LARGER:
        pick, best = (max, "highest") if BETTER_IF_LARGER[name] else (min, "lowest")
        value, place = pick(values), rounds[values.index(pick(values))]
        words.append(f"the {best} was {text_of(name, value)} in round {place:,}")
    often = (
        "every round" if len(rounds) == len(run.rounds) else f"{len(rounds):,} of {len(run.rounds):,} rounds"
    )
    marked = ", each marked" if len(rounds) <= MOST_MARKERS else ""
    text = f"{'; '.join(words)}. Scored after {often}{marked}. From {METRICS}: {name}."
    caption = text[0].upper() + text[1:] if entry == name else text
    series = Series(name, rounds, [100 * value for value in values] if unit == "%" else values)
    y_label = f"test {name}{f' ({unit})' if unit else ''}"
    return Section(title, plot=LinePlot(f"{name}_by_round", caption, [series], y_label, marked=True))


def epsilon_section(run: Run, whose: str) -> Section:
    """Return epsilon by round; `whose` says whom it protects."""
    title = "Epsilon by round"
    rounds, epsilon = run.column("epsilon")
    if not rounds:
        return Section(title, ["The run is not private, so there is no epsilon to draw."])
    caption = (
        f"Epsilon spent so far at delta = {bound(run.summary.get('delta'))} ({whose}): {bound(epsilon[0])} once "
        f"the first epoch has begun, {bound(epsilon[-1])} at the end. An epoch that has begun counts "
        f"whole. From {METRICS}: epsilon."
    )
    line = Series("epsilon", rounds, epsilon)
    plot = LinePlot("epsilon_by_round", caption, [line], "epsilon spent", steps=True, from_zero=True)
    return Section(title, plot=plot)


def bytes_section(run: Run) -> Section:
    """Return the bytes sent to the server so far, against a run that sends every parameter as float32."""
    title = "Bytes against an uncompressed run"
    count, envelope = run.summary["parameters"], run.summary.get("envelope_bytes_per_client") or 0
    lines = [line for line in run.rounds if line.get("uplink_bytes") is not None]
    rounds = [line["round"] for line in lines]
    sent = list(accumulate(line["uplink_bytes"] for line in lines))
    dense = list(accumulate((FLOAT_BYTES * count + envelope) * line["replies"] for line in lines))
    if not rounds or not sent[-1]:
        return Section(title, [f"{METRICS} records no bytes."])
    coordinates = run.privacy.get("coordinates")
    padding = (
        f" The Hadamard rotation works on powers of two: {number(count)} parameters are padded to {number(coordinates)}, which "
        "the compression pays for."
        if isinstance(coordinates, int) and coordinates > count
        else ""
    )
    caption = (
        f"Sent by all clients so far, envelopes included: {size(sent[-1])} against {size(dense[-1])} if "
        f"every reply contained all {number(count)} parameters as float32, {number(dense[-1] / sent[-1])} times as much."
        f"{padding} Nominal figures (expected, not measured: sizes would reveal mask counts). "
        f"From {METRICS}: uplink_bytes, replies; {SUMMARY}: parameters{f'; {PRIVACY}: coordinates' if padding else ''}."
    )
    series = [Series("this run", rounds, sent), Series("uncompressed", rounds, dense)]
    plot = LinePlot("bytes_by_round", caption, series, "sent by clients", from_zero=True, bytes_on="y")
    return Section(title, plot=plot)


def noise_section(run: Run) -> Section:
    """Return the standard deviation of the noise in the accumulated updates by round, against independent noise.

    Errors in mechanism.json are relative: over noise multiplier times clip norm and the first learning rate. Times
    `update_noise_std`, z Delta_2/(gamma n), they are those of the sum of all mean updates so far; where the optimizer is
    gradient descent and nothing else, the model moves by the learning rate times that sum. A run that ended early shows the
    rounds that it released: its noise was designed for more.
    """
    title, mechanism, released = "Noise against independent noise", run.mechanism, run.summary["rounds"]
    if not mechanism:
        return Section(title, [f"The run directory has no {MECHANISM}: nothing to compare."])
    family, planned = str(mechanism.get("family")), len(mechanism["per_round_error"])
    scale, unit, of, source = _noise_unit(run)
    own, independent = (
        [scale * error for error in mechanism[f"{name}per_round_error"][:released]]
        for name in ("", "independent_")
    )
    if not own or len(own) != len(independent) or max(*own, *independent) > LARGEST:
        raise RunDirectoryError(
            f"{MECHANISM} contains {len(own)} rounds of per_round_error and {len(independent)} of "
            f"independent_per_round_error; they must be as many, and at most {LARGEST:g} in {unit}."
        )
    rounds = range(1, len(own) + 1)
    mean, other = (math.hypot(*errors) / len(errors) ** 0.5 for errors in (own, independent))
    series = [Series(family, rounds, own), Series("independent", rounds, independent)]
    least, end = mechanism.get("lowest_rms_error"), ""
    if released < planned:
        end = (
            f" The noise was designed for {planned} rounds: for the {released} that were released it is as private, but "
            "another design would have left less noise."
        )
    elif least is not None:
        series.append(Series("least possible (RMS)", rounds, [scale * least] * len(own)))
        above = 100 * (mean / (scale * least) - 1)
        share = "less than 0.01 %" if above < 0.01 else f"{above:.2g} %"
        end = (
            f" With equal noise in every epoch no mechanism that restarts has less than {number(scale * least)}; this one is "
            f"{share} above."
        )
    caption = (
        f"Standard deviation of the noise on {of}: {number(own[0])} after the first round, {number(own[-1])} after the last. "
        f"Root mean square (RMS) over the run: {number(mean)} for {family}, {number(other)} for independent noise "
        f"at the same privacy, {number(other / mean)} times as much.{end} From {MECHANISM}: per_round_error{source}."
    )
    plot = LinePlot("noise_by_round", caption, series, f"noise std ({unit})", from_zero=True)
    return Section(title, plot=plot)


def _noise_unit(run: Run) -> tuple[float, str, str, str]:
    """Return what turns a relative error into an absolute one, its unit, what the noise is on, and more sources.

    The errors of mechanism.json count momentum and schedule; Nesterov's form, weight decay and adaptive rates they do not.
    """
    std, optimizer = run.mechanism.get("update_noise_std"), run.config.get("optimizer") or {}
    if not std or optimizer.get(
        "precondition"
    ):  # clients that scale their coordinates apart have no common unit
        of = "the accumulated updates, over noise multiplier times clip norm and the first learning rate"
        return 1.0, "relative", of, ""
    name, rate = optimizer.get("name", "the optimizer"), optimizer.get("learning_rate")
    is_plain = name == "sgd" and not (optimizer.get("nesterov") or optimizer.get("weight_decay"))
    if is_plain and isinstance(rate, int | float):
        source = f", update_noise_std; {CONFIG}: optimizer.learning_rate"
        return std * rate, "model units", "each coordinate of the model", source
    of = f"each coordinate of the accumulated mean updates, momentum and schedule counted; what else {name} makes of them is not"
    return std, "update units", of, ", update_noise_std"
