"""The compiled loops; taken only through `fedmf.kernels.kernel`.

Each gives what its form in numpy gives: it does the same operations in the same order, additions, multiplications and
square roots of IEEE numbers, which have one result, and calls no function of a library. Nothing is fused or reordered
but for `extent`, which says why that may be. Without numba they are plain Python: right, but slow.
"""

from functools import partial

import numpy as np
import numpy.typing as npt

from fedmf.compiling import compiled
from fedmf.normals import (
    C0,
    C1,
    C2,
    EIGHT,
    EXPONENT,
    FRACTION,
    HALF,
    HIGH,
    L0,
    L1,
    L2,
    L3,
    L4,
    L5,
    L6,
    L7,
    LN2_HIGH,
    LN2_LOW,
    MINUS_TWO,
    OFFSET,
    ONE,
    QUARTER,
    QUARTERS,
    ROUND,
    S0,
    S1,
    S2,
    SPARE,
    TURN,
    WHOLE,
)

Reals = npt.NDArray[np.float64] | npt.NDArray[np.float32]

_SIZE = np.uint32(0x7FFFFFFF)  # all bits of a float32 but its sign
_CHUNK = 1024  # pairs of normals whose scratch stays in the first-level cache

_compiled = partial(compiled, error_model="numpy")


@_compiled
def box_muller(
    words: npt.NDArray[np.uint32], cosines: npt.NDArray[np.float32], sines: npt.NDArray[np.float32]
) -> None:
    """Do what `normals.box_muller` does, in loops that the compiler makes vectors of."""
    scaled, power = np.empty(_CHUNK, np.float64), np.empty(_CHUNK, np.float64)
    step, radius = np.empty(_CHUNK, np.float32), np.empty(_CHUNK, np.float32)
    bits, powers = scaled.view(np.uint64), power.view(np.uint64)
    for start in range(0, len(cosines), _CHUNK):
        count = min(_CHUNK, len(cosines) - start)
        pairs = words[4 * start : 4 * (start + count)]
        cosine_chunk, sine_chunk = cosines[start : start + count], sines[start : start + count]
        for i in range(count):
            scaled[i] = np.float64(pairs[4 * i + 1]) * HIGH + (np.float64(pairs[4 * i]) + 0.5)
        for i in range(count):
            step[i] = np.float32(np.int32(pairs[4 * i + 3] >> SPARE))
        # The numbers become m in [sqrt(1/2), sqrt(2)) and their powers of two 2^52 + k.
        for i in range(count):
            k = (bits[i] - OFFSET) >> FRACTION
            bits[i] = bits[i] - ((k - EIGHT) << FRACTION)
            powers[i] = k | WHOLE
        for i in range(count):
            exponent = np.float32(power[i] - EXPONENT)
            x = np.float32(scaled[i] - 1.0)
            square = x * x
            value = ((((((L7 * x + L6) * x + L5) * x + L4) * x + L3) * x + L2) * x + L1) * x + L0
            value = value * x
            value = value * square
            value = value + exponent * LN2_LOW
            value = value - HALF * square
            value = value + x
            value = value + exponent * LN2_HIGH
            radius[i] = np.sqrt(value * MINUS_TWO)
        for i in range(count):
            quarter = step[i] * QUARTERS
            quarter = quarter + ROUND
            quarter = quarter - ROUND
            angle = ((step[i] - quarter * QUARTER) + HALF) * TURN
            square = angle * angle
            sine = (S2 * square + S1) * square + S0
            sine = sine * square * angle + angle
            cosine = (C2 * square + C1) * square + C0
            cosine = cosine * square * square - HALF * square + ONE
            one, two, three = quarter == 1.0, quarter == 2.0, quarter == 3.0
            odd = one | three
            x = sine if odd else cosine
            y = cosine if odd else sine
            r = radius[i]
            cosine_chunk[i] = x * (-r if one | two else r)
            sine_chunk[i] = y * (-r if two | three else r)


@partial(_compiled, fastmath={"reassoc"})
def extent(values: npt.NDArray[np.float32]) -> tuple[int, float]:
    """Return the largest bits of an entry without its sign, and the sum of squares.

    Sizes are in the order of their bits, with what is not finite at the end. The sum is taken in any order: it says what
    is surely within a bound, and nobody else reads it.
    """
    bits = values.view(np.uint32)
    largest, squares = np.uint32(0), 0.0
    for i in range(len(bits)):
        size = np.uint32(bits[i] & _SIZE)
        largest = size if size > largest else largest
    for i in range(len(values)):
        squares += np.float64(values[i]) * np.float64(values[i])
    return int(largest), squares


@_compiled
def add(
    total: npt.NDArray[np.int64],
    coordinates: npt.NDArray[np.int64],
    values: npt.NDArray[np.float32],
    bound: np.float32,
    scale: np.float32,
) -> None:
    """Add `values`, clipped to [-bound, bound] and times `scale`, as whole numbers; see `FixedPoint.add`."""
    size = np.uint64(len(total))
    for i in range(len(coordinates)):
        place = np.uint64(coordinates[i])  # what is below 0 is beyond all sizes: no index counts from the end
        if place >= size:
            raise IndexError("a coordinate lies outside the sum")
        total[place] += np.int64(min(max(values[i], -bound), bound) * scale)


@_compiled
def reals(total: npt.NDArray[np.int64], step: float, out: npt.NDArray[np.float64]) -> None:
    """Write `step` times the whole numbers into `out`, which may lie in the memory of `total`; see `FixedPoint.value`."""
    chunk = np.empty(_CHUNK, np.float64)
    for start in range(0, len(total), _CHUNK):
        count = min(_CHUNK, len(total) - start)
        given, place = total[start : start + count], out[start : start + count]
        for i in range(count):
            chunk[i] = np.float64(given[i]) * step
        for i in range(count):
            place[i] = chunk[i]


@_compiled
def noisy(
    total: Reals, noise: npt.NDArray[np.float32], sigma: np.float32, out: npt.NDArray[np.float32]
) -> None:
    """Write `total` plus `sigma` times `noise` into `out`; see `server.state`."""
    if len(total) != len(out) or len(noise) != len(out):
        raise ValueError("sum, noise and result differ in length")
    for i in range(len(out)):
        out[i] = total[i] + sigma * noise[i]


@_compiled
def descend(
    model: npt.NDArray[np.float32],
    velocity: npt.NDArray[np.float32],
    mean: npt.NDArray[np.float32],
    momentum: np.float32,
    rate: np.float32,
    decay: np.float32,
    decays: bool,
    nesterov: bool,
    after: npt.NDArray[np.float32],
    moved: npt.NDArray[np.float32],
) -> None:
    """Write the new velocity into `after` and the new model into `moved`; see `server.optimizer.Sgd`."""
    if len(velocity) != len(model) or len(mean) != len(model):
        raise ValueError("model, velocity and mean update differ in length")
    for i in range(len(model)):
        after[i] = momentum * velocity[i] + mean[i]
        direction = mean[i] + momentum * after[i] if nesterov else after[i]
        start = model[i] - decay * model[i] if decays else model[i]
        moved[i] = start + rate * direction
