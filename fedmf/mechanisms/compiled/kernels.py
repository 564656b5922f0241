"""Compiled kernels; taken only through `compiled`, which knows whether numba is there and worth its loading.

Every function does what its namesake in plain numpy does. Without numba the module can still be imported, and
its functions are plain Python: right, but slow.
"""

import numpy as np

from fedmf.compiling import compiled
from fedmf.mechanisms.arrays import Float64


@compiled
def tridiagonal(v: Float64, later: float, shifts: Float64, weights: Float64) -> Float64:
    """Do what `smoother.tridiagonal` does, round by round; poles side by side, as each waits for its own division."""
    n, count = len(v), len(shifts)
    total = np.zeros(n)
    down = np.empty((n, count))
    h = np.zeros(count)
    for i in range(n):
        for k in range(count):
            down[i, k] = h[k]
            p = shifts[k] * v[i] + h[k]
            h[k] = p / (1.0 + p)
    terms = np.empty(count)
    for k in range(count):
        h[k] = 1.0 / (1.0 + later)
    for i in range(n - 1, -1, -1):
        for k in range(count):
            p = shifts[k] * v[i] + h[k]
            terms[k] = weights[k] / (down[i, k] + p)
            h[k] = p / (1.0 + p)
        for k in range(count):
            total[i] += terms[k]
    return total


@compiled
def diagonal(
    v: Float64, eta: Float64, beta: float, behind: Float64, shifts: Float64, weights: Float64
) -> Float64:
    """Return the diagonal of `smoother.filters` alone, pole by pole: a pole's history stays in the cache."""
    n = len(v)
    total = np.zeros(n)
    steps = np.empty((4, n))
    last = np.empty(4)
    variances = np.empty(n)
    gathered = np.empty((n, 4))
    for k in range(len(shifts)):
        _filter_pole(v, eta, beta, behind, shifts[k], gathered, steps, variances, last)
        total += weights[k] * variances
    return total


@compiled
def filters(
    v: Float64, eta: Float64, beta: float, behind: Float64, shifts: Float64, weights: Float64
) -> tuple[Float64, Float64, Float64]:
    """Do what `smoother.filters` does."""
    n = len(v)
    steps = np.empty((4, n, len(shifts)))
    last = np.empty((4, len(shifts)))
    total = np.zeros(n)
    variances = np.empty(n)
    gathered = np.empty((n, 4))
    for k in range(len(shifts)):
        _filter_pole(v, eta, beta, behind, shifts[k], gathered, steps[:, :, k], variances, last[:, k])
        total += weights[k] * variances
    return steps, total, last


@compiled
def _filter_pole(
    v: Float64,
    eta: Float64,
    beta: float,
    behind: Float64,
    shift: float,
    gathered: Float64,
    steps: Float64,
    variances: Float64,
    last: Float64,
) -> None:
    """Run both filters of one pole: fill `gathered` (T, 4), `steps` (4, T), `variances` (T,) and `last` (4,).

    `gathered` is scratch for a, b, c, D; `steps` holds B, C, t, q; see `smoother.filters_in_numpy`.
    """
    n = len(v)
    a, b, c, D = (
        behind[0],
        behind[1],
        behind[2],
        behind[3],
    )  # the covariance of (x, d) by the rounds above i, and its determinant
    for i in range(n - 1, -1, -1):
        # One step of the walk, d_i = d_{i+1} + w_i and x_i = beta x_{i+1} + eta_i d_i.
        c += 1.0
        scaled = eta[i] * c
        D = beta * beta * (D + a)
        a = beta * beta * a + 2.0 * beta * eta[i] * b + eta[i] * scaled
        b = beta * b + scaled
        gathered[i, 0] = a
        gathered[i, 1] = b
        gathered[i, 2] = c
        gathered[i, 3] = D
        # Then x_i is observed with precision r.
        r = shift * v[i]
        q = 1.0 / (1.0 + r * a)
        c = (c + r * D) * q
        a, b, D = a * q, b * q, D * q
    A = B = C = J = 0.0  # the information on (x, d) in the rounds up to i, and its determinant
    for i in range(n):
        a, b, c, D = gathered[i]
        # x_i is observed with precision r.
        r = shift * v[i]
        J += r * C
        A += r
        # Both sides together: the first entry of (covariance^-1 + information)^-1.
        variances[i] = (D * C + a) / (D * J + A * a + 2.0 * B * b + C * c + 1.0)
        # The information on w_i, which enters along (eta_i, 1), and what is left of its variance.
        t = eta[i] * A + B
        innovation = eta[i] * (t + B) + C
        q = 1.0 / (1.0 + innovation)
        steps[0, i] = B
        steps[1, i] = C
        steps[2, i] = t
        steps[3, i] = q
        # w_i is integrated out: the information on (x, d) of the next round.
        A, B, C, J = beta * beta * (A + J) * q, beta * t * q, innovation * q, beta * beta * J * q
    last[0], last[1], last[2], last[3] = A, B, C, J


@compiled
def innovations(
    transition: Float64,
    noise: Float64,
    direction: Float64,
    readout: Float64,
    scale: Float64,
    behind: Float64,
) -> tuple[Float64, Float64]:
    """Do what `pole_process.innovations` does."""
    rounds, s, _, count = transition.shape
    states = s * count
    covariance = np.zeros((states, states))  # R, of all poles' states given the outputs behind round j
    for a in range(s):
        for b in range(s):
            for k in range(count):
                covariance[a * count + k, b * count + k] = behind[a, b, k]
    lam, c = np.empty((rounds, states)), np.empty(rounds)
    for j in range(rounds - 1, -1, -1):
        # R <- Phi_j R Phi_j^T + noise, each pole's own: its states do not mix with those of others.
        covariance = _sandwich(transition[j], covariance)
        for a in range(s):
            for b in range(s):
                for k in range(count):
                    added = noise[j, k] * direction[j, a] * direction[j, b]
                    covariance[a * count + k, b * count + k] += added
        # R e in lam_j, and the variance e^T R e of the output before scaling.
        variance = 0.0
        for row in range(states):
            gain = 0.0
            for b in range(s):
                for k in range(count):
                    gain += covariance[row, b * count + k] * readout[j, b]
            lam[j, row] = gain
            variance += gain * readout[j, row // count]
        # lam_j = R e / sqrt(e^T R e) and c_j = h_j sqrt(e^T R e).
        deviation = np.sqrt(variance)
        c[j] = scale[j] * deviation
        for row in range(states):
            lam[j, row] /= deviation
        # R <- R - lam_j lam_j^T: the output is known now.
        for row in range(states):
            for column in range(states):
                covariance[row, column] -= lam[j, row] * lam[j, column]
    return lam, c


@compiled
def observe(transition: Float64, lam: Float64, behind: Float64) -> Float64:
    """Do what `truncation.observe` does."""
    rounds, states = lam.shape
    gramians = np.empty((rounds, states, states))
    for t in range(rounds - 1, -1, -1):
        # W_t = F_t^T W_{t+1} F_t + lam_t lam_t^T, with F_t = Phi_t^T.
        behind = _sandwich(transition[t], behind)
        for row in range(states):
            for column in range(states):
                behind[row, column] += lam[t, row] * lam[t, column]
                gramians[t, row, column] = behind[row, column]  # a whole array takes 4 s to compile
    return gramians


@compiled
def reach(transition: Float64, read: Float64, before: Float64) -> Float64:
    """Do what `truncation.reach` does."""
    rounds, states = read.shape
    _, s, _, count = transition.shape
    gramians = np.empty((rounds + 1, states, states))
    turned = np.empty((s, s, count))  # Phi_t^T; copied by hand, as whole arrays take seconds more to compile
    current = before.copy()
    for t in range(rounds):
        for row in range(states):
            for column in range(states):
                gramians[t, row, column] = current[row, column]
                current[row, column] += read[t, row] * read[t, column]
        for a in range(s):
            for b in range(s):
                for k in range(count):
                    turned[a, b, k] = transition[t, b, a, k]
        # W_{t+1} = F_t (W_t + read_t read_t^T) F_t^T, with F_t = Phi_t^T.
        current = _sandwich(turned, current)
    for row in range(states):
        for column in range(states):
            gramians[rounds, row, column] = current[row, column]
    return gramians


@compiled
def _sandwich(transition: Float64, symmetric: Float64) -> Float64:
    """Do what `pole_process.sandwich` does."""
    s, _, count = transition.shape
    result = np.zeros_like(symmetric)
    # Blocks of poles k and m: Phi_k W_km Phi_m^T, s x s each.
    for a in range(s):
        for d in range(s):
            for b in range(s):
                for e in range(s):
                    for k in range(count):
                        left = transition[a, d, k]
                        for m in range(count):
                            result[a * count + k, b * count + m] += (
                                left * symmetric[d * count + k, e * count + m] * transition[b, e, m]
                            )
    return result


@compiled
def column_norms(F: Float64, g: Float64, lam: Float64, c: Float64, rounds: int) -> Float64:
    """Do what `recurrence.column_norms` does."""
    r = g.shape[1]
    gramian = np.zeros((r, r))  # W_{t+1}
    half = np.empty((r, r))  # W_{t+1} F_t
    norms = np.empty(rounds)
    for step in range(rounds - 1, -1, -1):
        i = min(step, len(c) - 1)
        # The square norm of column t, c_t^2 + g_t^T W_{t+1} g_t.
        square = c[i] * c[i]
        for a in range(r):
            for b in range(r):
                square += g[i, a] * gramian[a, b] * g[i, b]
                total = 0.0
                for d in range(r):
                    total += gramian[a, d] * F[i, d, b]
                half[a, b] = total
        norms[step] = np.sqrt(square)
        # W_t = lam_t lam_t^T + F_t^T W_{t+1} F_t.
        for a in range(r):
            for b in range(r):
                total = lam[i, a] * lam[i, b]
                for d in range(r):
                    total += F[i, d, a] * half[d, b]
                gramian[a, b] = total
    return norms


@compiled
def output_variances(transition: Float64, added: Float64, covariance: Float64, variances: Float64) -> Float64:
    """Do what `recurrence.carry` does."""
    n, size, _ = transition.shape
    current = covariance.copy()
    half = np.empty((size, size))  # F S
    for step in range(n):
        # S <- F S F^T + what fresh rows add.
        for a in range(size):
            for b in range(size):
                total = 0.0
                for d in range(size):
                    total += transition[step, a, d] * current[d, b]
                half[a, b] = total
        for a in range(size):
            for b in range(size):
                total = added[step, a, b]
                for d in range(size):
                    total += half[a, d] * transition[step, b, d]
                current[a, b] = total
        variances[step] = current[size - 1, size - 1]
    return current
