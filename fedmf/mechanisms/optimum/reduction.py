"""The optimal strategy matrix as a recurrence: exact with two states a pole, then reduced to a handful of buffers.

H X(v) H = C^T C, with H = diag(X)^-1/2, is the covariance of a scaled sum of independent processes, one a
pole: process k has precision matrix P + s_k V, so it is Markov, going BACKWARD in time with a state (x, d) of
two numbers:

    state_j = Phi_j state_{j+1} + noise of covariance w_k q_j b_j b_j^T,     output h_j e_j . state_j.

With Lambda what the forward filter of `smoother` knows about the state and b = (eta, 1), the step w of the
walk has the law N(-q b^T Lambda Phi0 state_{j+1}, q) given the observations, hence Phi = (I - q b b^T Lambda)
Phi0. Kalman's innovations of the sum, from the last round to the first, are the triangular factor: lower
triangular C with unit columns, z_t = c_t x_t + lam_t . sigma_t as in `streams.recurrence`, where

    F_t = Phi_t^T,     g_t = h_t Phi_t^T e_t.

The covariance R of the states is that before the observation of a round, given the outputs after it; the
observation then takes lam lam^T away. Lambda is information after the observation. Where the run continues after the
epoch, the state after its last round is not 0 but has covariance w_k (Q^-1 + Lambda)^-1, with Q as in `workload` and
Lambda the forward filter's information after the last round. With momentum 0, x = eta d at every step: d alone is kept,
one state a pole.

Then time-varying balanced truncation. Before round t the state sigma_t matters by what can have entered it, the reach
Gramian

    Wc_{t+1} = F_t (Wc_t + h_t^2 e e^T) F_t^T,

and by what it will still do to the outputs z, the observability Gramian Wo_t = lam_t lam_t^T + F_t^T Wo_{t+1}
F_t. The eigenvectors of Wc Wo with the largest eigenvalues span the r states worth keeping: with T_t Z_t = I
the reduced recurrence is F -> T_{t+1} F_t Z_t, g -> T_{t+1} g_t, lam -> Z_t^T lam_t. The subspaces are
nested, so that one reduction to the most buffers holds every smaller one in its leading entries.

The truncation need not be accurate for privacy: column norms and loss are computed from the result.
"""

from collections.abc import Iterator
from dataclasses import astuple, dataclass

import numpy as np

from fedmf.mechanisms.optimum import smoother
from fedmf.mechanisms.optimum.fixed_point import Solution
from fedmf.mechanisms.optimum.poles import poles
from fedmf.mechanisms.streams.recurrence import StrategyForm
from fedmf.mechanisms.workload import Float64, Workload, rates

# Relative error of the pole expansion. The loss is stationary at the optimum, so it moves by about the square of this,
# far below the 1e-4 asked for; privacy does not rest on it.
QUADRATURE = 1e-4
CHUNK = 256  # rounds whose Gramians are held at once
JITTER = 1e-14  # relative; makes a semidefinite Gramian factorable
MOST_JITTER = 1e-8  # rounding over many rounds and states can leave an eigenvalue further below 0
NEGLIGIBLE = 1e-13  # eigenvalues of Wc Wo below this fraction of the largest are rounding noise


@dataclass(frozen=True)
class PoleProcess:
    """The backward Markov processes of K poles with s = 1 or 2 states each, float64.

    `transition` (T, s, s, K) is Phi; `noise` (T, K) is w q; `direction` (T, s) is b; `readout` (T, s) is e,
    the same for every pole; `scale` (T,) is h; `behind` (s, s, K) is the covariance of the state after the last
    round. States are ordered (s, K), flattened to s K.
    """

    transition: Float64
    noise: Float64
    direction: Float64
    readout: Float64
    scale: Float64
    behind: Float64

    @property
    def states(self) -> int:
        """s K."""
        return int(self.transition.shape[1] * self.transition.shape[3])


def pole_process(solution: Solution, workload: Workload) -> PoleProcess:
    """Return the processes whose sum has covariance X(v), with h_i = X_ii^-1/2."""
    expansion = poles(solution.interval, QUADRATURE)
    filtered, variances, last = smoother.filters(solution.v, workload, expansion)
    q = filtered[3]  # the variance of the walk's step w_i given the observations, by pole
    eta = rates(workload)
    one = np.ones_like(eta)
    # Phi, b and e: of (x, d), or with momentum 0 of d alone, where Phi is q and x = eta d.
    transition, direction, readout = (
        (q[:, None, None], one[:, None], eta[:, None])
        if workload.momentum == 0
        else (
            _transition(filtered, eta, workload.momentum),
            np.stack([eta, one], axis=1),
            np.stack([one, 0 * one], axis=1),
        )
    )
    # Behind the epoch (Q^-1 + Lambda)^-1 = Q (1 + Lambda Q)^-1, from A, B, C, J of Lambda, by adjugates: the determinant is a sum of
    # positive terms; only the entry off the diagonal is a difference.
    (A, B, C, J), (a, b, c, D) = last, astuple(workload.later)
    covariance = np.stack([np.stack([a + D * C, b - D * B]), np.stack([b - D * B, c + D * A])])
    first = expansion.weights * (covariance / (1 + A * a + 2 * B * b + C * c + J * D))
    return PoleProcess(
        transition,
        expansion.weights * q,
        direction,
        readout,
        variances**-0.5,
        np.ascontiguousarray(first[1:, 1:]) if workload.momentum == 0 else first,
    )


def _transition(filtered: Float64, eta: Float64, beta: float) -> Float64:
    """Return Phi, shape (T, 2, 2, K), from the forward filter's B, C, t, q of shape (T, K)."""
    B, C, t, q = filtered
    rate = eta[:, None]
    rows = [[beta * (1 + rate * B + C) * q, rate * q], [-beta * t * q, q]]
    return np.stack([np.stack(row, axis=1) for row in rows], axis=1)


def innovations(process: PoleProcess) -> tuple[Float64, Float64]:
    """Return gains lam (T, s K) and standard deviations c (T,) of the innovations: a Riccati recursion from the last round."""
    rounds, s, _, count = process.transition.shape
    covariance = np.zeros((process.states, process.states))  # R, of the states given the outputs after j
    lam, c = np.empty((rounds, process.states)), np.empty(rounds)
    poles_diagonal = np.arange(count)
    entries = covariance.reshape(s, count, s, count)
    entries[:, poles_diagonal, :, poles_diagonal] = process.behind.transpose(2, 0, 1)
    for j in range(rounds - 1, -1, -1):
        # R <- Phi_j R Phi_j^T + w_k q_j b_j b_j^T, the noise in the block of each pole k.
        covariance = sandwich(process.transition[j], covariance)
        entries = covariance.reshape(s, count, s, count)
        entries[:, poles_diagonal, :, poles_diagonal] += (
            process.noise[j][:, None, None] * process.direction[j][:, None] * process.direction[j]
        )
        gain = covariance @ np.repeat(process.readout[j], count)  # R e
        deviation = np.sqrt(gain.reshape(s, count).sum(1) @ process.readout[j])  # sqrt(e^T R e)
        lam[j] = gain / deviation
        c[j] = process.scale[j] * deviation
        # The output of round j is known now.
        covariance -= np.multiply.outer(lam[j], lam[j])
    return lam, c


def sandwich(transition: Float64, symmetric: Float64) -> Float64:
    """Return Phi W Phi^T for symmetric W (s K, s K), Phi given as (s, s, K): block-diagonal over poles."""
    if len(transition) == 1:
        q: Float64 = transition[0, 0]
        return q[:, None] * symmetric * q
    return transport(transition, transport(transition, symmetric).T)  # Phi W^T Phi^T, and W is symmetric


def transport(transition: Float64, rows: Float64) -> Float64:
    """Return Phi M for M of shape (..., s K, m) and Phi of shape (..., s, s, K)."""
    s, count = transition.shape[-2:]
    split = rows.reshape(*rows.shape[:-2], 1, s, count, rows.shape[-1])
    return (transition[..., None] * split).sum(-3).reshape(rows.shape)  # type: ignore[no-any-return]


def inputs(process: PoleProcess) -> Float64:
    """Return g_t = h_t Phi_t^T e_t, shape (T, s K)."""
    weighted = process.readout[:, :, None, None] * process.transition
    return process.scale[:, None] * weighted.sum(1).reshape(len(process.scale), -1)  # type: ignore[no-any-return]


def truncate(process: PoleProcess, buffers: int) -> StrategyForm:
    """Return C reduced to `buffers` states; states that nothing has reached are zero."""
    lam, c = innovations(process)
    r = min(buffers, process.states)
    form = StrategyForm(
        np.zeros((len(c), buffers, buffers)), np.zeros((len(c), buffers)), np.zeros((len(c), buffers)), c
    )
    entering = inputs(process)
    after = np.zeros((1, r, process.states))  # T of the round after the chunk; nothing follows the last one
    for part, reach, observed in _gramians(process, lam):
        project, lift = _balance(reach, observed, r)  # T_t and Z_t
        following = np.concatenate([project[1:], after])  # T_{t+1}
        transposed = process.transition[part].swapaxes(1, 2)  # F_t = Phi_t^T
        # T_{t+1} F_t Z_t, T_{t+1} g_t and Z_t^T lam_t
        form.F[part, :r, :r] = following @ transport(transposed, lift)
        form.g[part, :r] = np.einsum("tri,ti->tr", following, entering[part])
        form.lam[part, :r] = np.einsum("tir,ti->tr", lift, lam[part])
        after = project[:1]
    return form


def _gramians(process: PoleProcess, lam: Float64) -> Iterator[tuple[slice, Float64, Float64]]:
    """Yield (rounds, Wc, Wo) chunk by chunk from the last; Wc is recomputed from the start of each chunk."""
    rounds = len(lam)
    parts = [slice(start, min(start + CHUNK, rounds)) for start in range(0, rounds, CHUNK)]
    before = [np.zeros((process.states, process.states))]  # Wc at the start of each chunk
    for part in parts[:-1]:
        before.append(_reach(process, part, before[-1])[-1])
    after = np.zeros((process.states, process.states))
    for part, reached in zip(reversed(parts), reversed(before), strict=True):
        observed = _observe(process.transition[part], lam[part], after)
        after = observed[0]
        yield part, _reach(process, part, reached)[:-1], observed


def _reach(process: PoleProcess, part: slice, before: Float64) -> Float64:
    """Return Wc of the rounds in `part` and of the one after, shape (len + 1, sK, sK): F (W + read read^T) F^T in turn."""
    transition = process.transition[part]
    read = process.scale[part, None] * process.readout[part].repeat(transition.shape[3], axis=1)
    gramians = np.empty((len(read) + 1, *before.shape))
    gramians[0] = before
    for t in range(len(read)):
        entered = gramians[t] + np.multiply.outer(read[t], read[t])
        gramians[t + 1] = sandwich(transition[t].swapaxes(0, 1), entered)
    return gramians


def _observe(transition: Float64, lam: Float64, after: Float64) -> Float64:
    """Return Wo of these rounds, (len, sK, sK), in their order: F^T W F + lam lam^T from the last to the first."""
    gramians = np.empty((len(lam), *after.shape))
    for t in range(len(lam) - 1, -1, -1):
        after = sandwich(transition[t], after)
        after += np.multiply.outer(lam[t], lam[t])
        gramians[t] = after
    return gramians


def _balance(reach: Float64, observed: Float64, r: int) -> tuple[Float64, Float64]:
    """Return T (n, r, sK) and Z (n, sK, r) of the r largest eigenvalues of Wc Wo; T Z = I where reached.

    With Wo = R R^T and R^T Wc R = Y diag(L) Y^T these are T = Y^T R^T and Z = Wc R Y / L. States are first
    scaled to equal reach, since their sizes differ by many orders of magnitude.
    """
    size = np.sqrt(np.einsum("tii->ti", reach))  # the standard deviation of each state
    scale = np.where(size > 0, size, 1.0)
    reach = reach / scale[:, :, None] / scale[:, None, :]
    observed = observed * scale[:, :, None] * scale[:, None, :]
    root = _root(observed)  # R
    # L and Y, largest first; directions nothing has reached are dropped.
    values, vectors = np.linalg.eigh(root.swapaxes(1, 2) @ reach @ root)
    values, vectors = values[:, ::-1][:, :r], vectors[:, :, ::-1][:, :, :r]
    kept = values > NEGLIGIBLE * values[:, :1]
    directions = root @ (vectors * kept[:, None, :])  # T^T = R Y
    lift = reach @ directions / np.where(kept, values, 1.0)[:, None, :]
    return directions.swapaxes(1, 2) / scale[:, None, :], lift * scale[:, :, None]


def _root(gramians: Float64) -> Float64:
    """Return lower triangular R with R R^T close to each of the Gramians (n, sK, sK), which rounding left semidefinite.

    Raises `FloatingPointError` for a matrix that is no Gramian.
    """
    added = np.einsum("tii->t", gramians)[:, None, None] * np.eye(gramians.shape[1])
    jitter = JITTER
    while jitter <= MOST_JITTER:
        try:
            return np.linalg.cholesky(gramians + jitter * added)
        except np.linalg.LinAlgError:
            jitter *= 100
    raise FloatingPointError("an observability Gramian is not positive semidefinite")
