"""Compiled loops over one client's update; taken only through `fedmf.compiling.loops`.

Each does what a function in plain numpy does, which is named in its docstring. Nothing is compiled with `fastmath`: the
order of all additions is the one that is written here. Without numba this module can still be imported, and its
functions are plain Python: right, but slow.

The Hadamard transform runs in blocks of 2^10 coordinates, which stay in the first-level cache: passes of radix 4 that read
four contiguous quarters and write them interleaved, so that after the last all coordinates are back in order and no
pass has a stride. The bits above follow in place, in radix-4 stages blocked at 2^16 while these fit the second level.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedmf.compiling import compiled

Words = npt.NDArray[np.uint64]
Reals = npt.NDArray[Any]  # float32 or float64; all of one call are of one type

_BLOCK, _PANEL = 1 << 10, 1 << 16


@compiled
def positions(
    words: Words,
    guide: npt.NDArray[np.int16],
    table: Words,
    position: int,
    dimension: int,
    kept: npt.NDArray[np.int64],
) -> tuple[int, int]:
    """Write the coordinates that `words` keep into `kept`; return the last one looked at, and how many were kept.

    The coordinates after `position` and below `dimension`. What `masks._positions_in_numpy` does.
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


@compiled
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


@compiled
def sweep(update: Reals, start: Reals, signs: npt.NDArray[np.int8], factor: Any, transformed: Reals) -> float:
    """Write H (factor signs (update - start)) into `transformed`, and return the sum of squares of update - start.

    All are float32 and padded with zeros to the power of two that `transformed` is long; an empty `start` stands for
    zeros. `rotation.Rotation._turn_in_numpy` in numpy. The squares are added in float64, in one lane for each place in a
    block.
    """
    here, there = np.empty(_BLOCK, np.float32), np.empty(_BLOCK, np.float32)
    squares, size = np.zeros(_BLOCK), update.size
    for panel in range(0, transformed.size, _PANEL):
        end = min(panel + _PANEL, transformed.size)
        for first in range(panel, end, _BLOCK):
            if first >= size:
                transformed[first : first + _BLOCK] = 0
                continue
            given, sign = update[first : first + _BLOCK], signs[first : first + _BLOCK]
            if start.size:
                before = start[first : first + _BLOCK]
                for j in range(given.size):
                    here[j] = given[j] - before[j]
            else:
                here[: given.size] = given
            here[given.size :] = 0
            for j in range(given.size):
                wide = np.float64(here[j])
                squares[j] += wide * wide
                here[j] *= np.float32(sign[j]) * factor
            _transform_block(here, there, transformed[first : first + _BLOCK])
        if panel < size:
            _transform_above(transformed[panel:end], _BLOCK)
    _transform_above(transformed, _PANEL)
    return float(squares.sum())


@compiled
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


@compiled
def _interleave(given: Reals, out: Reals) -> None:
    """Transform the two highest bits of a coordinate and make them the lowest: a pass of radix 4."""
    size = given.size // 4
    a, b, c, d = given[:size], given[size : 2 * size], given[2 * size : 3 * size], given[3 * size :]
    for j in range(size):
        plus, minus, plus_too, minus_too = a[j] + b[j], a[j] - b[j], c[j] + d[j], c[j] - d[j]
        out[4 * j] = plus + plus_too
        out[4 * j + 1] = minus + minus_too
        out[4 * j + 2] = plus - plus_too
        out[4 * j + 3] = minus - minus_too


@compiled
def _transform_above(vector: Reals, stride: int) -> None:
    """Transform in place the bits of a coordinate from that of `stride` up: in stages of radix 4, and one of 2 if need be."""
    while 4 * stride <= vector.size:
        for start in range(0, vector.size, 4 * stride):
            group = vector[start : start + 4 * stride]
            a, b = group[:stride], group[stride : 2 * stride]
            c, d = group[2 * stride : 3 * stride], group[3 * stride :]
            for j in range(stride):
                plus, minus, plus_too, minus_too = a[j] + b[j], a[j] - b[j], c[j] + d[j], c[j] - d[j]
                a[j] = plus + plus_too
                b[j] = minus + minus_too
                c[j] = plus - plus_too
                d[j] = minus - minus_too
        stride *= 4
    if 2 * stride <= vector.size:
        a, b = vector[:stride], vector[stride:]
        for j in range(stride):
            a[j], b[j] = a[j] + b[j], a[j] - b[j]
