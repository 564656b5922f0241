"""Compiled kernels; import only through `compiled`, which knows whether numba is there."""

import numba
import numpy as np

from fedmf.mechanisms.arrays import Float64


@numba.njit(cache=True)
def diagonal(v: Float64, eta: Float64, beta: float, shifts: Float64, weights: Float64) -> Float64:
    """The two filters of `smoother`, pole by pole so that a pole's history stays in the cache."""
    n = len(v)
    gathered = np.empty((n, 4))
    total = np.zeros(n)
    for k in range(len(shifts)):
        a = b = c = D = 0.0
        for i in range(n - 1, -1, -1):
            c += 1.0
            scaled = eta[i] * c
            D = beta * beta * (D + a)
            a = beta * beta * a + 2.0 * beta * eta[i] * b + eta[i] * scaled
            b = beta * b + scaled
            gathered[i] = (a, b, c, D)
            r = shifts[k] * v[i]
            q = 1.0 / (1.0 + r * a)
            c = (c + r * D) * q
            a, b, D = a * q, b * q, D * q
        A = B = C = J = 0.0
        for i in range(n):
            a, b, c, D = gathered[i]
            r = shifts[k] * v[i]
            J += r * C
            A += r
            total[i] += weights[k] * (D * C + a) / (D * J + A * a + 2.0 * B * b + C * c + 1.0)
            t = eta[i] * A + B
            innovation = eta[i] * (t + B) + C
            q = 1.0 / (1.0 + innovation)
            A, B, C, J = beta * beta * (A + J) * q, beta * t * q, innovation * q, beta * beta * J * q
    return total
