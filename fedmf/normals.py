"""Normal numbers on a lattice: half-integers v + 1/2 of standard deviation 2^44, whose law is known in every point.

A ziggurat in integers. `LAYERS` layers of equal area cover the graph of exp(-x^2/2), 0 <= x < `REACH`. A 64-bit word
gives a layer (8 bits) and a place in it: the whole part of 56 bits times the number of places, with Lemire's exact
rejection (Lemire 2019), so that every place of a layer has the same number of words. A word that is rejected for this
gives way to other 56 bits in the SAME layer: layers lose different shares of their words, up to 0.7 %, and drawing
the layer again would weigh them by what is left. A place inside the next narrower layer is taken at once (98.2 %); any other
is compared with the curve at a uniform height of 192 bits, three words, and one above it gives way to a new layer.

Let g(m) = exp(-x^2/2) at x = (m + 1/2) 2^-44. The probability of +-(m + 1/2) is proportional to g(m) (1 + r_m) with
|r_m| <= `LAW_ERROR`/2 for every m below `REACH` 2^44:

- layers are equally likely and the places of a layer too, exactly; the heights are those at which the layers' areas are
  equal, and rounding them to float64 moves them by 2^-53;
- the comparison with the curve errs by 2^-51 of the curve, and by what `exp_minus` does: 2^-53 t for the rounding of
  x^2, t = x^2/2 <= 98, and 2^-51 for the rest;
- an edge is the nearest lattice point to the true one, and the curve is taken at the middle of a place, so that no
  place lies on the wrong side of its edge;
- a height of 192 bits resolves the probability of being taken, at least 2^-131, to 2^-62;
- the highest layer ends within 2^-49 of 1, the top of the curve.

Beyond `REACH` lies a mass of 2^-145 (`TAIL`). The mass of floor(2^44 z) + 1/2 for a real normal z is g(m) up to 2^-80.

Nothing here is a function of a library: only whole numbers, and additions and multiplications of IEEE numbers in a
stated order. The bits are the same on every machine, with numba or without. The law, its edges and a toy of the
algorithm are computed exactly in `tests/fedmf/test_normals.py`.
"""

import decimal
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from fedmf.compiling import loops

# Rows of another form are other noise (2: Box and Muller's transform in float32, which is not private).
FORM = 3
LOG2_STD, LAYERS, REACH = 44, 256, 14
# Area of a layer under exp(-x^2/2), x >= 0: with it the stack of layers ends at 1.
AREA = "0.00494323457066864356697273630"
UNIT = 2.0**-53  # relative error of one rounding of float64
LAW_ERROR = 2.0**-45  # of the logarithm of the probability of any point within REACH
TAIL = 1.6e-44  # two-sided mass of a normal number beyond REACH standard deviations
BLOCK = 1 << 14  # numbers of a block: words and numbers stay in the second-level cache
SPARE = 5 << 9  # words after those of a block, for the places that are not taken at once
TRY = 4  # words of another try: three of a height, and the next candidate

S8, S28, ONE = np.uint64(8), np.uint64(28), np.uint64(1)
LOW28, LAYER = np.uint64((1 << 28) - 1), np.uint64(LAYERS - 1)
STEP, WORD = 2.0**-LOG2_STD, 2.0**-64
LOG2E, LN2_HIGH, LN2_LOW = (
    1 / np.log(2),
    float.fromhex("0x1.62e42fee00000p-1"),
    float.fromhex("0x1.a39ef35793c76p-33"),
)
ROUND = 1.5 * 2.0**52  # added and subtracted again it rounds to a whole number
TAYLOR = tuple(
    1.0 / n for n in (479001600, 39916800, 3628800, 362880, 40320, 5040, 720, 120, 24, 6, 2, 1, 1)
)  # 1/n!

Words = np.typing.NDArray[np.uint64]
Reals = np.typing.NDArray[np.float64]
Indices = np.typing.NDArray[np.int64]


def stack(
    area: decimal.Decimal, log2_std: int, layers: int, reach: int
) -> tuple[list[int], list[decimal.Decimal]]:
    """Return the widths of the layers in lattice steps, widest first and 0 last, and the heights at which they begin."""
    with decimal.localcontext(decimal.Context(prec=50)):
        scale = decimal.Decimal(2) ** log2_std
        widths, heights = [reach << log2_std], [decimal.Decimal(0)]
        for layer in range(layers):
            heights.append(heights[-1] + area * scale / widths[-1])
            inside = -2 * heights[-1].ln() if layer + 1 < layers else decimal.Decimal(0)
            widths.append(int((inside.sqrt() * scale).to_integral_value()))
    return widths, heights


@cache
def tables() -> tuple[Words, Words, Words, Reals, Reals]:
    """Return, by layer: places with both signs, those inside the next layer, the words to reject, foot and height."""
    widths, heights = stack(decimal.Decimal(AREA), LOG2_STD, LAYERS, REACH)
    places = np.array([2 * width for width in widths], np.uint64)
    reject = np.array([(1 << 56) % (2 * width) for width in widths[:-1]], np.uint64)
    foot = np.array([float(height) for height in heights[:-1]])
    rise = np.array([float(upper - lower) for lower, upper in pairwise(heights)])
    return places[:-1], places[1:].copy(), reject, foot, rise


def fill_normals(words: Words, out: Reals, draw: Callable[[int], Words]) -> None:
    """Write the half-integers of `words` into `out`, (BLOCK,) float64; `words`, (BLOCK + SPARE,) uint64, is overwritten.

    `draw` gives more words, for about one block in 10^5. Every word is used once.
    """
    take, settle = take_at_once, settle_open
    if (fast := loops()) is not None:
        take, settle = fast.take_at_once, fast.settle_open
    left = np.empty(BLOCK + 1, np.int64)  # the places that are still open
    count = take(words[:BLOCK], out, left, *tables()[:3])
    count = settle(words[:BLOCK], left, count, words[BLOCK:], out, *tables())
    while count:
        count = settle(words[:BLOCK], left, count, draw(TRY * count), out, *tables())


def take_at_once(words: Words, out: Reals, left: Indices, places: Words, inner: Words, reject: Words) -> int:
    """Write the number of every word into `out`; return how many of them are not valid yet, with their places in `left`."""
    layer = (words & LAYER).astype(np.intp)
    place, rest = candidate(words, places[layer])
    out[:] = signed(place)
    is_open = np.flatnonzero((place >= inner[layer]) | (rest < reject[layer]))
    left[: len(is_open)] = is_open
    return len(is_open)


def settle_open(
    words: Words, left: Indices, count: int, spare: Words, out: Reals,
    places: Words, inner: Words, reject: Words, foot: Reals, rise: Reals,
) -> int:  # fmt: skip
    """Settle the places `left[:count]`, all of them once and those still open again; return how many stay open.

    A try takes three words of `spare` for a height and one for the next candidate, which replaces the place's word, but
    for the layer where the word was rejected for its remainder.
    """
    at = 0
    while 0 < TRY * count <= len(spare) - at:
        more = spare[at : at + TRY * count].reshape(count, TRY)
        at += TRY * count
        open_words = words[left[:count]]
        layer = (open_words & LAYER).astype(np.intp)
        place, rest = candidate(open_words, places[layer])
        number = signed(place)
        x = number * STEP
        height = foot[layer] + rise[layer] * chance(more[:, 0], more[:, 1], more[:, 2])
        is_good = (place < inner[layer]) | (height < exp_minus(0.5 * (x * x)))
        is_good &= rest >= reject[layer]
        out[left[:count][is_good]] = number[is_good]
        still, following = left[:count][~is_good], more[~is_good, 3]
        keeps = (rest < reject[layer])[~is_good]
        words[still] = np.where(keeps, following & ~LAYER | words[still] & LAYER, following)
        count = len(still)
        left[:count] = still
    return count


# What follows takes numbers as well as arrays of them: `fedmf.fast` compiles it.


def exp_minus(t: Any) -> Any:
    """Return exp(-t) for 0 <= t <= 98, float64: relative error below 2^-50 for t as it is given."""
    k = t * -LOG2E + ROUND - ROUND
    r = (-t - k * LN2_HIGH) - k * LN2_LOW
    value = r * TAYLOR[0] + TAYLOR[1]
    for coefficient in TAYLOR[2:]:
        value = value * r + coefficient
    return np.ldexp(value, np.int32(k))


def candidate(word: Any, count: Any) -> tuple[Any, Any]:
    """Return place (its lowest bit is the sign) and remainder: the upper 56 bits of `word` times a layer's places."""
    bits = word >> S8
    low = (bits & LOW28) * (count & LOW28)
    middle = (bits >> S28) * (count & LOW28) + (bits & LOW28) * (count >> S28) + (low >> S28)
    return (bits >> S28) * (count >> S28) + (middle >> S28), ((middle & LOW28) << S28) | (low & LOW28)


def signed(place: Any) -> Any:
    """Return m + 1/2 for place 2 m, and -(m + 1/2) for place 2 m + 1."""
    size = np.float64(np.int64(place >> ONE)) + 0.5
    return size - 2 * size * (place & ONE)


def chance(first: Any, second: Any, third: Any) -> Any:
    """Return a height in [0, 1) from 192 bits, three words."""
    low = np.float64(second) + (np.float64(third) + 0.5) * WORD
    return (np.float64(first) + low * WORD) * WORD
