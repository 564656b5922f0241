"""The optimal strategy matrix as an exact recurrence: two states per pole, one where momentum is 0.

H X(v) H = C^T C, with H = diag(X)^-1/2, is the covariance of a scaled sum of independent processes, one a
pole: process k has precision matrix P + s_k V, so it is Markov, going BACKWARD in time with a state (x, d) of
two numbers:

    state_j = Phi_j state_{j+1} + noise of covariance w_k q_j b_j b_j^T,     output h_j e_j . state_j.

With Lambda what the forward filter of `smoother` knows about the state and b = (eta, 1), the step w of the
walk has the law N(-q b^T Lambda Phi0 state_{j+1}, q) given the observations, hence Phi = (I - q b b^T Lambda)
Phi0. Kalman's innovations of the sum, from the last round to the first, are the triangular factor: lower
triangular C with unit columns, z_t = c_t x_t + lam_t . sigma_t as in `recurrence`, where

    F_t = Phi_t^T,     g_t = h_t Phi_t^T e_t.

The covariance R of the states is that before the observation of a round, given the outputs behind it; the
observation then takes lam lam^T away. Lambda is information after the observation. Where the run goes on after the
epoch, the state behind its last round is not 0 but has covariance w_k (Q^-1 + Lambda)^-1, with Q as in
`later_rounds` and Lambda the forward filter's information after the last round.

With momentum 0, x = eta d at every step: d alone is kept.
"""

from dataclasses import dataclass

import numpy as np

from fedmf.mechanisms.arrays import Float64
from fedmf.mechanisms.optimum import smoother
from fedmf.mechanisms.optimum.fixed_point import Solution
from fedmf.mechanisms.optimum.poles import poles
from fedmf.mechanisms.streams.recurrence import StrategyForm
from fedmf.mechanisms.workload import Workload, rates

# Relative error of the pole expansion. The loss is stationary at the optimum, so it moves by about the square of this,
# far below the 1e-4 asked for; privacy does not rest on it.
QUADRATURE = 1e-4


@dataclass(frozen=True)
class PoleProcess:
    """The backward Markov processes of K poles with s = 1 or 2 states each, float64.

    `transition` (T, s, s, K) is Phi; `noise` (T, K) is w q; `direction` (T, s) is b; `readout` (T, s) is e,
    the same for every pole; `scale` (T,) is h; `behind` (s, s, K) is the covariance of the state behind the last
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


@dataclass(frozen=True)
class Innovations:
    """What the backward filter yields: lam (T, s K) and c (T,)."""

    lam: Float64
    c: Float64


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
    first = expansion.weights * _behind(last, workload)
    return PoleProcess(
        transition,
        expansion.weights * q,
        direction,
        readout,
        variances**-0.5,
        np.ascontiguousarray(first[1:, 1:]) if workload.momentum == 0 else first,
    )


def _behind(information: Float64, workload: Workload) -> Float64:
    """Return (Q^-1 + Lambda)^-1 = Q (1 + Lambda Q)^-1, shape (2, 2, K), from A, B, C, J of Lambda, (4, K)."""
    A, B, C, J = information
    a, b, c, D = smoother.behind(workload)
    # By adjugates: the determinant is a sum of positive terms; only the entry off the diagonal is a difference.
    covariance = np.stack([np.stack([a + D * C, b - D * B]), np.stack([b - D * B, c + D * A])])
    shared: Float64 = covariance / (1 + A * a + 2 * B * b + C * c + J * D)
    return shared


def _transition(filtered: Float64, eta: Float64, beta: float) -> Float64:
    """Return Phi, shape (T, 2, 2, K), from the forward filter's B, C, t, q of shape (T, K)."""
    B, C, t, q = filtered
    rate = eta[:, None]
    rows = [[beta * (1 + rate * B + C) * q, rate * q], [-beta * t * q, q]]
    return np.stack([np.stack(row, axis=1) for row in rows], axis=1)


def innovations(process: PoleProcess) -> Innovations:
    """Return the gains and standard deviations of the innovations: a Riccati recursion from the last round."""
    rounds, s, _, count = process.transition.shape
    covariance = np.zeros((process.states, process.states))  # R, of the states given the outputs behind j
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
    return Innovations(lam, c)


def sandwich(transition: Float64, symmetric: Float64) -> Float64:
    """Return Phi W Phi^T for symmetric W (s K, s K), Phi given as (s, s, K): block-diagonal over poles."""
    if len(transition) == 1:
        q: Float64 = transition[0, 0]
        return q[:, None] * symmetric * q
    half = transport(transition, symmetric)  # Phi W
    return transport(transition, half.T)  # Phi W^T Phi^T, and W is symmetric


def transport(transition: Float64, rows: Float64) -> Float64:
    """Return Phi M for M of shape (..., s K, m) and Phi of shape (..., s, s, K)."""
    s, count = transition.shape[-2:]
    split = rows.reshape(*rows.shape[:-2], 1, s, count, rows.shape[-1])
    moved: Float64 = (transition[..., None] * split).sum(-3)
    return moved.reshape(rows.shape)


def exact_form(process: PoleProcess) -> StrategyForm:
    """Return C as a recurrence of s K states with dense F, (T, sK, sK): the truncation's twin, for tests."""
    inner = innovations(process)
    identity = np.broadcast_to(np.eye(process.states), (len(inner.c), process.states, process.states))
    transposed = process.transition.swapaxes(1, 2)
    return StrategyForm(transport(transposed, identity), inputs(process), inner.lam, inner.c)


def inputs(process: PoleProcess) -> Float64:
    """Return g_t = h_t Phi_t^T e_t, shape (T, s K)."""
    weighted = process.readout[:, :, None, None] * process.transition
    summed: Float64 = weighted.sum(1).reshape(len(process.scale), -1)
    return process.scale[:, None] * summed
