"""The loops of fedmf that numba compiles (the extra `fast`); taken only through `fedmf.compiling.loops`.

A loop is here because numpy alone makes a row of the benchmark more than a tenth slower. Each does what a function in
numpy does, which its docstring names. Nothing is fused or reordered: the order of all operations is the one written here. The
normals, masks and sums have the same bits as in numpy; the transforms and the diagonal agree to rounding.

The Hadamard transform runs in blocks of 2^10 coordinates, which stay in the first-level cache: passes of radix 4 that read
four contiguous quarters and write them interleaved, so that after the last all coordinates are back in order and no
pass has a stride. The bits above follow in place, in radix-4 stages blocked at 2^16 while these fit the second level.
"""

from typing import Any

import numba
import numpy as np

from fedmf import normals
from fedmf.normals import LAYER, STEP, TRY, Indices, Words

Float64 = np.typing.NDArray[np.float64]
Reals = np.typing.NDArray[Any]  # float32 or float64; all of one call are of one type

_BLOCK, _PANEL = 1 << 10, 1 << 16
_compiled = numba.njit(cache=True, error_model="numpy")
_inlined = numba.njit(cache=True, error_model="numpy", inline="always")

# numba's cache is for this file as it is: another arithmetic in `fedmf.normals` is another FORM, to be written here too.
assert normals.FORM == 3
_candidate, _signed = _inlined(normals.candidate), _inlined(normals.signed)
_chance, _exp_minus = _inlined(normals.chance), _inlined(normals.exp_minus)


@_compiled
def take_at_once(
    words: Words, out: Float64, left: Indices, places: Words, inner: Words, reject: Words
) -> int:
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
    words: Words, left: Indices, count: int, spare: Words, out: Float64,
    places: Words, inner: Words, reject: Words, foot: Float64, rise: Float64,
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
                x = _signed(place) * STEP
                height = foot[layer] + rise[layer] * _chance(more[0], more[1], more[2])
                is_good = height < _exp_minus(0.5 * (x * x))
            if is_good:
                out[i] = _signed(place)
            else:
                left[still] = i
                words[i] = more[3] & ~LAYER | words[i] & LAYER if rest < reject[layer] else more[3]
                still += 1
        at += TRY * count
        count = still
    return count


@_compiled
def add(
    total: np.typing.NDArray[np.int64],
    coordinates: np.typing.NDArray[np.int64],
    values: np.typing.NDArray[np.float32],
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
def positions(
    words: Words,
    guide: np.typing.NDArray[np.int16],
    table: Words,
    position: int,
    dimension: int,
    kept: np.typing.NDArray[np.int64],
) -> tuple[int, int]:
    """Write the coordinates that `words` keep into `kept`; return the last one looked at, and how many were kept.

    The coordinates after `position` and below `dimension`. What `masks._positions` does in numpy.
    """
    longest, count = len(table), np.uint64(0)  # without a sign: no place is counted from the end
    for word in words:
        gap = int(guide[word >> np.uint64(48)])
        if gap < 0:  # several gaps share the leading bits: this is less the first of them
            gap = -gap
            while gap <= longest and table[gap - 1] <= word:
                gap += 1
        position += gap if gap <= longest else longest
        if position >= dimension:
            break
        if gap <= longest:
            kept[count] = position
            count += np.uint64(1)
    return position, int(count)


@_compiled
def transform(vector: Reals, factor: Any, out: Reals) -> None:
    """Write H (factor vector) into `out`, H the Sylvester matrix of entries +-1; `rotation.hadamard` in numpy.

    The size is a power of two. `out` may be `vector`: a block is read before it is written.
    """
    here, there = np.empty(_BLOCK, vector.dtype), np.empty(_BLOCK, vector.dtype)
    for panel in range(0, vector.size, _PANEL):
        end = min(panel + _PANEL, vector.size)
        for start in range(panel, end, _BLOCK):
            given = vector[start : start + _BLOCK]
            for j in range(given.size):
                here[j] = given[j] * factor
            _transform_block(here, there, out[start : start + _BLOCK])
        _transform_above(out[panel:end], _BLOCK)
    _transform_above(out, _PANEL)


@_compiled
def sweep(
    update: Reals, start: Reals, signs: np.typing.NDArray[np.int8], factor: Any, transformed: Reals
) -> float:
    """Write H (factor signs (update - start)) into `transformed`, and return the sum of squares of update - start.

    All are float32 and padded with zeros to the power of two that `transformed` is long; an empty `start` stands for
    zeros. `rotation.Rotation._turn_in_numpy` in numpy. The squares are added in float64, in one lane for each place in a
    block.
    """
    squares, size = np.zeros(_BLOCK), update.size
    for first in range(0, size, _BLOCK):
        change, sign = transformed[first : min(first + _BLOCK, size)], signs[first : first + _BLOCK]
        change[:] = update[first : first + _BLOCK]
        if start.size:
            change -= start[first : first + _BLOCK]
        for j in range(change.size):
            wide = np.float64(change[j])
            squares[j] += wide * wide
            change[j] *= np.float32(sign[j]) * factor
    transformed[size:] = 0
    transform(transformed, np.float32(1), transformed)
    return float(squares.sum())


@_compiled
def _transform_block(here: Reals, there: Reals, out: Reals) -> None:
    """Write the transform of the block `here` into `out`, which may be shorter; `here` and `there` are overwritten."""
    if out.size < _BLOCK:
        out[:] = here[: out.size]
        _transform_above(out, 1)
        return
    for _ in range(2):  # the bits of _BLOCK, two a pass
        _interleave(here, there)
        _interleave(there, here)
    _interleave(here, out)


@_inlined
def _butterfly(a: Any, b: Any, c: Any, d: Any) -> tuple[Any, Any, Any, Any]:
    plus, minus, plus_too, minus_too = a + b, a - b, c + d, c - d
    return plus + plus_too, minus + minus_too, plus - plus_too, minus - minus_too


@_compiled
def _interleave(given: Reals, out: Reals) -> None:
    """Transform the two highest bits of a coordinate and make them the lowest: a pass of radix 4."""
    size = given.size // 4
    a, b, c, d = given[:size], given[size : 2 * size], given[2 * size : 3 * size], given[3 * size :]
    for j in range(size):
        out[4 * j], out[4 * j + 1], out[4 * j + 2], out[4 * j + 3] = _butterfly(a[j], b[j], c[j], d[j])


@_compiled
def _transform_above(vector: Reals, stride: int) -> None:
    """Transform in place the bits of a coordinate from that of `stride` up: in stages of radix 4, and one of 2 if need be."""
    while 4 * stride <= vector.size:
        for start in range(0, vector.size, 4 * stride):
            group = vector[start : start + 4 * stride]
            a, b = group[:stride], group[stride : 2 * stride]
            c, d = group[2 * stride : 3 * stride], group[3 * stride :]
            for j in range(stride):
                a[j], b[j], c[j], d[j] = _butterfly(a[j], b[j], c[j], d[j])
        stride *= 4
    if 2 * stride <= vector.size:
        a, b = vector[:stride], vector[stride:]
        for j in range(stride):
            a[j], b[j] = a[j] + b[j], a[j] - b[j]


@_compiled
def diagonal(
    v: Float64, eta: Float64, beta: float, behind: Float64, shifts: Float64, weights: Float64
) -> Float64:
    """Return the diagonal of `smoother.filters_in_numpy` alone, pole by pole: a pole's history stays in the cache."""
    n = len(v)
    total = np.zeros(n)
    gathered = np.empty((n, 4))
    for k in range(len(shifts)):
        # The covariance of (x, d) by the rounds above i, and its determinant.
        a, b, c, D = behind[0], behind[1], behind[2], behind[3]
        for i in range(n - 1, -1, -1):
            # One step of the walk, d_i = d_{i+1} + w_i and x_i = beta x_{i+1} + eta_i d_i.
            c += 1.0
            scaled = eta[i] * c
            D = beta * beta * (D + a)
            a = beta * beta * a + 2.0 * beta * eta[i] * b + eta[i] * scaled
            b = beta * b + scaled
            gathered[i, 0], gathered[i, 1], gathered[i, 2], gathered[i, 3] = a, b, c, D
            # Then x_i is observed with precision r.
            r = shifts[k] * v[i]
            q = 1.0 / (1.0 + r * a)
            c = (c + r * D) * q
            a, b, D = a * q, b * q, D * q
        A = B = C = J = 0.0  # the information on (x, d) in the rounds up to i, and its determinant
        for i in range(n):
            a, b, c, D = gathered[i]
            # x_i is observed with precision r.
            r = shifts[k] * v[i]
            J += r * C
            A += r
            # Both sides together: the first entry of (covariance^-1 + information)^-1.
            variance = (D * C + a) / (D * J + A * a + 2.0 * B * b + C * c + 1.0)
            total[i] += weights[k] * variance
            # The information on w_i, which enters along (eta_i, 1), and what is left of its variance.
            t = eta[i] * A + B
            innovation = eta[i] * (t + B) + C
            q = 1.0 / (1.0 + innovation)
            # w_i is integrated out: the information on (x, d) of the next round.
            A, B, C, J = beta * beta * (A + J) * q, beta * t * q, innovation * q, beta * beta * J * q
    return total
