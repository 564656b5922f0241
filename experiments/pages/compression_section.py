"""The section of a report that says why the compression is what it is, and how it grows with the model."""

from typing import Any

from experiments.pages.page import Section, Table
from experiments.pages.wording import number, size, times, times_less
from experiments.run_files.directory import CONFIG
from experiments.settings.recorded import Recorded
from fedmf.errors import RunDirectoryError
from fedmf.updates.compression import Compression
from fedmf.updates.rotation import padded_dimension
from fedmf.updates.wire import value_bytes

FLOAT_BYTES = 4
# How the ratio grows with the model: name, parameters on 10 classes.
SIZES = (("logistic, 8 x 8", 650), ("mlp, 28 x 28", 203_530), ("cnn, 28 x 28", 1_011_466))


def recorded_compression(config: Recorded) -> Compression:
    """Return the compression that a run's config names. Raises `RunDirectoryError` where it names none."""
    try:
        return Compression(**config["compression"])
    except (KeyError, TypeError) as error:
        raise RunDirectoryError(f"{CONFIG} names no compression ({error}); restore the file.") from error


def compression_section(summary: dict[str, Any], compression: Compression) -> Section:
    """Return why the ratio is what it is, and how it grows with the model."""
    count, rotation = int(summary["parameters"]), compression.rotation
    rows = [
        (name, f"{d:,}", f"{padded_dimension(d, rotation):,}", times(ratio(d, compression)))
        for name, d in (("this run", count), *SIZES)
    ]
    growth = (
        "The loss to padding depends on how far d lies below a power of two; the envelope of a message "
        f"({size(summary.get('envelope_bytes_per_client'))}) weighs less the larger the model. "
        "Larger models also afford a smaller keep probability at the same epsilon, which is where the ratio "
        "grows. The table holds this run's keep probability and value type fixed."
    )
    table = Table(("model", "parameters d", "sent from, D", "compression"), rows, numbers=(1, 2, 3))
    return Section("Why the compression is what it is", [reason(count, compression), growth], table=table)


def reason(count: int, compression: Compression) -> str:
    """Return in words how many of `count` parameters are sent, and how much less than all that is."""
    keep, padded = compression.keep_probability, padded_dimension(count, compression.rotation)
    value = value_bytes(1, 1.0, compression.value_type)
    bits, ideal, sent = round(8 * value), FLOAT_BYTES / (keep * value), ratio(count, compression)
    if padded == count:
        return (
            f"Nothing is padded, so keeping each value with probability {number(keep)} at {bits} bits sends "
            f"{times(ideal)} times less than {count:,} parameters of 32 bits."
        )
    return (
        f"The Hadamard rotation works on powers of two, so {count:,} parameters are padded to {padded:,}, "
        f"and a client keeps each of the {padded:,} rotated values with probability {number(keep)}: on "
        f"average {number(keep * padded)} values of {bits} bits. Against {count:,} parameters of 32 bits "
        f"that is {times_less(sent)}" + (f", not {times(ideal)} times." if sent >= 1 else ".")
    )


def ratio(parameters: int, compression: Compression) -> float:
    """Return 4 d over the value bytes that a client sends on average.

    >>> round(ratio(650, Compression(0.1, "hadamard", "float32")), 2)
    6.35
    """
    padded = padded_dimension(parameters, compression.rotation)
    sent = value_bytes(padded, compression.keep_probability, compression.value_type)
    return FLOAT_BYTES * parameters / sent
