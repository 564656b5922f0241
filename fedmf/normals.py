"""Independent standard normals from uniform words by Box and Muller's transform, in blocks that fit the cache.

Four words of 32 bits make a pair: the first two, as w with the lower half first, u = (w + 1/2) / 2^64, and the top 24
bits of the last one a turn of (bits + 1/2) / 2^24; these give sqrt(-2 log u) times cosine and sine. The radius reaches 9.49 standard deviations. A block is planar: the cosines of
its pairs come first, then the sines.

Nothing here is a function of a library: logarithm, sine and cosine are polynomials, made of additions and
multiplications of IEEE numbers in a stated order. So the bits are the same on every machine, with any version of
numpy, and with numba or without. Of the exact transform a normal is off by less than 3e-7 of its pair's radius
(`tests/fedmf/test_normals.py`).
"""

import numpy as np
import numpy.typing as npt

from fedmf.kernels import kernel

FORM = 2  # of what words make of normals: rows of another form are other noise (1: in pairs, by numpy's functions)
PAIRS = 1 << 13  # in a block: words and normals together stay in the second-level cache

# m = t 2^-e lies in [sqrt(1/2), sqrt(2)): adding the exponent bits of 8 keeps all numbers of the search unsigned.
OFFSET = np.uint64(0x3FE6A09E00000000 - (8 << 52))
EIGHT = np.uint64(8)
FRACTION = np.uint64(52)  # bits of a float64 below its exponent
WHOLE = np.uint64(0x4330000000000000)  # the bits of 2^52: or'ed with k < 2^52 they are those of 2^52 + k
EXPONENT = 2.0**52 + 8 + 64  # what 2^52 + k stands for when t is u 2^64
# log(1 + x) = x - x^2/2 + x^3 P(x) on [sqrt(1/2) - 1, sqrt(2) - 1]; P by Chebyshev interpolation, highest power first.
L7, L6, L5, L4, L3, L2, L1, L0 = (
    np.float32(c)
    for c in (
        -0.081015587,
        0.12712307,
        -0.12972239,
        0.14202175,
        -0.16642247,
        0.20001468,
        -0.25000298,
        0.33333328,
    )
)
HALF, ONE, MINUS_TWO = np.float32(0.5), np.float32(1), np.float32(-2)
LN2_HIGH = np.float32(0.693359375)  # so short that its product with an exponent is exact
LN2_LOW = np.float32(np.log(2) - 0.693359375)
HIGH = 2.0**32  # what the higher half of a word counts
SPARE = np.uint32(8)  # bits of the last word that are not used
QUARTER = np.float32(2.0**22)  # a quarter turn in steps
TURN = np.float32(2 * np.pi / 2**24)  # a step in radians
QUARTERS = np.float32(2.0**-22)
ROUND = np.float32(1.5 * 2**23)  # added and taken away again it rounds to a whole number
# sin y = y + y^3 S(y^2) and cos y = 1 - y^2/2 + y^4 C(y^2) on [-pi/4, pi/4], by interpolation likewise.
S2, S1, S0 = (np.float32(c) for c in (-0.00019587924, 0.0083327489, -0.16666664))
C2, C1, C0 = (np.float32(c) for c in (2.4547966e-05, -0.0013888304, 0.041666664))

Words = npt.NDArray[np.uint32]
Normals = npt.NDArray[np.float32]


def fill_normals(words: Words, cosines: Normals, sines: Normals) -> None:
    """Fill `cosines` and `sines`, (k,) float32 each, with the normals of `words`, (4 k,) uint32; k is at most `PAIRS`."""
    compiled = kernel("box_muller", 2 * len(cosines))
    if compiled is None:
        box_muller(words, cosines, sines)
    else:
        compiled(words, cosines, sines)


def box_muller(words: Words, cosines: Normals, sines: Normals) -> None:
    """Do what `fill_normals` does, in numpy."""
    radius = _radius(words[0::4], words[1::4])
    step = (words[3::4] >> SPARE).astype(np.int32).astype(np.float32)
    quarter = step * QUARTERS
    quarter += ROUND
    number = quarter.view(np.int32).copy()  # its lowest two bits tell how many quarter turns
    quarter -= ROUND
    quarter *= QUARTER
    step -= quarter
    step += HALF
    step *= TURN  # an angle in [-pi/4, pi/4] now, behind that many quarter turns
    square = step * step
    sine = _horner(square, S2, S1, S0)
    sine *= square
    sine *= step
    sine += step
    cosine = _horner(square, C2, C1, C0)
    cosine *= square
    cosine *= square
    cosine -= HALF * square
    cosine += ONE
    # After an odd number of quarter turns they change places: all bits of what differs, or none.
    odd = -(number & 1)
    odd &= cosine.view(np.int32) ^ sine.view(np.int32)
    cosine.view(np.int32)[:] ^= odd
    sine.view(np.int32)[:] ^= odd
    np.multiply(cosine, radius, out=cosines)
    np.multiply(sine, radius, out=sines)
    # The second bit of the number is the sign of the sine, and of the cosine a quarter turn before.
    sines.view(np.int32)[:] ^= (number & 2) << 30
    number += 1
    cosines.view(np.int32)[:] ^= (number & 2) << 30


def _radius(low: Words, high: Words) -> Normals:
    """Return sqrt(-2 log((w + 1/2) / 2^64)) for w = low + 2^32 high, (k,) float32: as exact for w at either end."""
    scaled = high.astype(np.float64)
    scaled *= HIGH
    scaled += low.astype(np.float64) + 0.5
    bits = scaled.view(np.uint64)
    power = bits - OFFSET
    power >>= FRACTION
    bits -= (power - EIGHT) << FRACTION  # `scaled` lies in [sqrt(1/2), sqrt(2)) now
    power |= WHOLE
    exponent = (power.view(np.float64) - EXPONENT).astype(np.float32)
    scaled -= 1.0
    x = scaled.astype(np.float32)
    square = x * x
    logarithm = _horner(x, L7, L6, L5, L4, L3, L2, L1, L0)
    logarithm *= x
    logarithm *= square
    logarithm += exponent * LN2_LOW
    logarithm -= HALF * square
    logarithm += x
    logarithm += exponent * LN2_HIGH
    logarithm *= MINUS_TWO
    return np.sqrt(logarithm, out=logarithm)


def _horner(x: Normals, *coefficients: np.float32) -> Normals:
    """Return the polynomial of `coefficients`, highest power first, at x (k,)."""
    value = coefficients[0] * x
    for coefficient in coefficients[1:-1]:
        value += coefficient
        value *= x
    value += coefficients[-1]
    return value
