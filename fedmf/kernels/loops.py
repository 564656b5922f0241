"""The compiled loops; taken only through `fedmf.kernels.kernel`.

Each gives what its form in numpy gives: it does the same operations in the same order, additions, multiplications and
square roots of IEEE numbers, which have one result, and calls no function of a library. Nothing is fused or reordered
but for `extent`, which says why that may be. Without numba they are plain Python: right, but slow.
"""

import math
from functools import partial

import numpy as np
import numpy.typing as npt

from fedmf.compiling import compiled
from fedmf.normals import (
    LAYER,
    LN2_HIGH,
    LN2_LOW,
    LOG2E,
    LOW28,
    ONE,
    ROUND,
    S8,
    S28,
    STEP,
    TAYLOR,
    TRY,
    WORD,
)

Reals = npt.NDArray[np.float64] | npt.NDArray[np.float32]

Words = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

_SIZE = np.uint32(0x7FFFFFFF)  # all bits of a float32 but its sign
_CHUNK = 1024  # numbers whose scratch stays in the first-level cache

_compiled = partial(compiled, error_model="numpy")
_inlined = partial(_compiled, inline="always")


@_compiled
def take_at_once(words: Words, out: Floats, left: Indices, places: Words, inner: Words, reject: Words) -> int:
    """Do what `normals.take_at_once` does."""
    count = 0
    for i in range(len(words)):
        layer = words[i] & LAYER
        place, rest = _candidate(words[i], places[layer])
        out[i] = _signed(place)
        left[count] = i
        count += (place >= inner[layer]) | (rest < reject[layer])
    return count


@_compiled
def settle_open(
    words: Words, left: Indices, count: int, spare: Words, out: Floats,
    places: Words, inner: Words, reject: Words, foot: Floats, rise: Floats,
) -> int:  # fmt: skip
    """Do what `normals.settle_open` does."""
    at = 0
    while 0 < TRY * count <= len(spare) - at:
        still = 0
        for j in range(count):
            i, more = left[j], spare[at + TRY * j : at + TRY * (j + 1)]
            layer = words[i] & LAYER
            place, rest = _candidate(words[i], places[layer])
            is_good = rest >= reject[layer]
            if is_good and place >= inner[layer]:
                height = np.float64(more[1]) + (np.float64(more[2]) + 0.5) * WORD
                height = (np.float64(more[0]) + height * WORD) * WORD
                x = (np.float64(place >> ONE) + 0.5) * STEP
                is_good = foot[layer] + rise[layer] * height < _exp_minus(0.5 * (x * x))
            if is_good:
                out[i] = _signed(place)
            else:
                left[still] = i
                words[i] = more[3] & ~LAYER | words[i] & LAYER if rest < reject[layer] else more[3]
                still += 1
        at += TRY * count
        count = still
    return count


@_inlined
def _candidate(word, count):  # type: ignore[no-untyped-def]
    bits = word >> S8
    low = (bits & LOW28) * (count & LOW28)
    middle = (bits >> S28) * (count & LOW28) + (bits & LOW28) * (count >> S28) + (low >> S28)
    return (bits >> S28) * (count >> S28) + (middle >> S28), ((middle & LOW28) << S28) | (low & LOW28)


@_inlined
def _signed(place):  # type: ignore[no-untyped-def]
    size = np.float64(np.int64(place >> ONE)) + 0.5
    return -size if place & ONE else size


@_inlined
def _exp_minus(t):  # type: ignore[no-untyped-def]
    k = t * -LOG2E + ROUND - ROUND
    r = (-t - k * LN2_HIGH) - k * LN2_LOW
    value = r * TAYLOR[0] + TAYLOR[1]
    for coefficient in TAYLOR[2:]:
        value = value * r + coefficient
    return math.ldexp(value, int(k))


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
def on_lattice(
    total: Reals, mean: Floats, fresh: Floats, inverse: float, of_mean: float, step: float, out: Reals
) -> None:
    """Write step (rint(total inverse + mean of_mean) + fresh) into `out`; see `fedmf.mechanisms.noise`."""
    if not len(total) == len(mean) == len(fresh) == len(out):
        raise ValueError("sum, noise and result differ in length")
    for i in range(len(out)):
        out[i] = step * (np.rint(total[i] * inverse + mean[i] * of_mean) + fresh[i])


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
