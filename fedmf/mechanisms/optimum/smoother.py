"""The diagonal of (P + s V)^-1, P = W^-1, for all poles s at once, in O(T) a pole and without a subtraction.

P is the precision matrix of a random walk that runs backward in time with two states, driven by white w,

    d_i = d_{i+1} + w_i,     x_i = beta x_{i+1} + eta_i d_i,

which begins after the last round with covariance Q, what the later rounds of the run have made of it unobserved
(`workload`; 0 where none follow, then x = A^T w and W = A^T A). And P + s V is that of the same walk after x_i was observed with precision r_i = s v_i. So G_ii is the variance of
x_i given all observations. Two filters meet in it:

- `_backward` carries the covariance [[a, b], [b, c]] of (x, d) given the rounds above i, D = a c - b^2;
- the forward one the information [[A, B], [B, C]] that the rounds up to i hold about (x, d), J = A C - B^2;
- together (covariance^-1 + information)^-1 has the entry (D C + a)/(D J + A a + 2 B b + C c + 1).

One step of each, from round to round and then with x_i observed; q = 1/(1 + r_i a) and 1/(1 + C'):

    D <- beta^2 (D + a),  c <- c + 1,  a <- beta^2 a + 2 beta eta_i b + eta_i^2 c,  b <- beta b + eta_i c    (the old a in D)
    c <- c - r_i b^2 q = (c + r_i D) q,  (a, b, D) <- (a, b, D) q

    J <- J + r_i C,  A <- A + r_i,  t = eta_i A + B,  C' = eta_i (t + B) + C    (w_i, along (eta_i, 1), is integrated out)
    A <- beta^2 (A - t^2 q) = beta^2 (A + J) q,  B <- beta t q,  C <- C' q,  J <- beta^2 J q

The determinants D and J are carried as numbers of their own: every operation then adds, multiplies or divides
positive numbers, so that the result has full relative accuracy whatever the condition number. Banded solvers
of LAPACK lose it from T ~ 1000 on.

With numba (the extra `fast`) the diagonal for momentum is compiled (`fedmf.fast`); the results agree to rounding.
"""

from dataclasses import astuple

import numpy as np

from fedmf.compiling import loops
from fedmf.mechanisms.optimum.poles import Poles
from fedmf.mechanisms.workload import Float64, Workload, rates

# Rounds from which the compiled diagonal pays: a design asks for it a hundred times, and loading numba takes a second.
COMPILED_FROM = 512


def diagonal(v: Float64, workload: Workload, poles: Poles) -> Float64:
    """Return the diagonal of X(v) = sum_k w_k (P + s_k V)^-1, shape (T,), for positive v (T,)."""
    if workload.momentum == 0:
        return tridiagonal(v * rates(workload) ** 2, workload.later.c, *poles) * rates(workload) ** 2
    # The rounds of the epoch and after it alone decide, so that the same run meets the same tables.
    if workload.rounds + workload.later.c >= COMPILED_FROM and (fast := loops()) is not None:
        return np.asarray(
            fast.diagonal(v, rates(workload), workload.momentum, np.array(astuple(workload.later)), *poles)
        )
    return filters_in_numpy(v, workload, poles)[1]


def tridiagonal(v: Float64, later: float, shifts: Float64, weights: Float64) -> Float64:
    """Return the diagonal for momentum 0, rates 1 and `later` rounds behind the epoch, where P is tridiagonal.

    With one state the filters carry one number each: h <- p / (1 + p), p = r_i + h. Downward h is the information on d
    after its step, from 0; upward it is one over the variance of d before its observation, from 1 / (1 + `later`).
    Together G_ii = 1 / (h_down + r_i + h_up). These 1 + p are the pivots of the tridiagonal matrix in either
    direction; LAPACK's factorization makes them by a subtraction that loses up to log10(T (T + `later`)) digits of G.
    """
    observed = shifts * v[:, None]  # r_i
    starts = np.concatenate([np.zeros_like(shifts), np.full_like(shifts, 1 / (1 + later))])
    down, up = np.split(_carried(np.concatenate([observed, observed[::-1]], axis=1), starts), 2, axis=1)
    return np.asarray((1 / (down + observed + up[::-1])) @ weights)


def _carried(added: Float64, start: Float64) -> Float64:
    """Return h before each round, (T, n), of h <- p / (1 + p), p = `added` + h, from `start` (n,).

    In blocks of rounds, all at once. What a block makes of the h at its head is h -> alpha + beta h / (1 + gamma h),
    and so is what two blocks make of it, with positive numbers that only add, multiply and divide.
    """
    rounds, columns = added.shape
    size = int(np.ceil(np.sqrt(rounds)))
    blocks = -(-rounds // size)
    padded = np.zeros((blocks * size, columns))
    padded[:rounds] = added
    steps = np.ascontiguousarray(padded.reshape(blocks, size, columns).swapaxes(0, 1))
    alpha, beta, gamma = np.zeros((blocks, columns)), np.ones((blocks, columns)), np.zeros((blocks, columns))
    for step in steps:
        p = step + alpha
        share = 1 / (1 + p)
        alpha = p * share
        gamma += beta * share
        beta *= share**2
    h = np.empty((size, blocks, columns))
    for block in range(blocks):
        h[0, block] = start
        start = alpha[block] + beta[block] * start / (1 + gamma[block] * start)
    for step in range(size - 1):
        p = steps[step] + h[step]
        np.divide(p, 1 + p, out=h[step + 1])
    return h.swapaxes(0, 1).reshape(-1, columns)[:rounds]


def filters(v: Float64, workload: Workload, poles: Poles) -> tuple[Float64, Float64, Float64]:
    """Return what the forward filter knows, and the diagonal of X(v), for any momentum and rates.

    B, C, t, q of each round, (4, T, K), are its state after the observation, see `filters_in_numpy`; then the
    diagonal (T,); then the information A, B, C, J on the state after the last round, (4, K). For momentum 0, with h of
    `tridiagonal`, downward, B = 0, C = h and q = 1 / (1 + p).
    """
    if workload.momentum != 0:
        return filters_in_numpy(v, workload, poles)
    eta = rates(workload)[:, None]
    information = poles.shifts * (v[:, None] * eta**2)  # r_i on d
    h = _carried(information, np.zeros_like(poles.shifts))
    p = information + h
    steps = np.stack([np.zeros_like(h), h, poles.shifts * v[:, None] * eta, 1 / (1 + p)])
    last = np.zeros((4, len(poles.shifts)))
    last[2] = p[-1] / (1 + p[-1])
    return steps, diagonal(v, workload, poles), last


def filters_in_numpy(v: Float64, workload: Workload, poles: Poles) -> tuple[Float64, Float64, Float64]:
    """Return what `filters` returns: the backward filter, then the forward one, over all poles at once."""
    beta, eta = workload.momentum, rates(workload)
    # The covariance a, b, c and determinant D of (x_i, d_i) before x_i is observed.
    gathered = np.empty((len(v), 4, len(poles.shifts)))
    a, b, c, D = np.repeat(np.array([astuple(workload.later)]).T, len(poles.shifts), axis=1)
    for i in range(len(v) - 1, -1, -1):
        # One step of the walk: d_i = d_{i+1} + w_i, then x_i = beta x_{i+1} + eta_i d_i.
        c = c + 1
        scaled = eta[i] * c
        D = beta**2 * (D + a)
        a = beta**2 * a + (2 * beta * eta[i]) * b + eta[i] * scaled
        b = beta * b + scaled
        gathered[i] = a, b, c, D
        # x_i is observed with precision r: the Kalman update, q the share of its variance that is left.
        r = poles.shifts * v[i]
        q = 1 / (1 + r * a)
        c = (c + r * D) * q
        a, b, D = a * q, b * q, D * q
    steps, total = np.empty((4, len(v), len(poles.shifts))), np.empty(len(v))
    A, B, C, J = np.zeros((4, len(poles.shifts)))
    for i in range(len(v)):
        r = poles.shifts * v[i]
        a, b, c, D = gathered[i]
        # x_i is observed: its precision joins the information [[A, B], [B, C]].
        J = J + r * C
        A = A + r
        # The variance of x_i given all rounds, (covariance^-1 + information)^-1, summed over poles.
        total[i] = poles.weights @ ((D * C + a) / (D * J + A * a + 2 * (B * b) + C * c + 1))
        # The information on w_i, which enters along (eta_i, 1), and its variance q given the observations.
        t = eta[i] * A + B
        innovation = eta[i] * (t + B) + C
        q = 1 / (1 + innovation)
        steps[:, i] = B, C, t, q
        # w_i is integrated out: the information on (x, d) of round i + 1.
        A, B, C, J = beta**2 * (A + J) * q, beta * t * q, innovation * q, beta**2 * J * q
    return steps, total, np.stack([A, B, C, J])
