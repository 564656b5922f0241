"""Buffered linear Toeplitz matrices: C with optimised coefficients 1 and sum_i omega_i theta_i^(k-1).

C^-1 has the same form. The recurrence S' = theta S + x, z = x + omega . S becomes
S' = (theta - 1 omega^T) S + z when solved for x; with omega > 0 it is similar to the symmetric
theta - sqrt(omega) sqrt(omega)^T, whose eigenvalues are the decays of C^-1. Sources: Dvijotham, McMahan, Pillutla, Steinke, Thakurta, "Efficient and
near-optimal noise generation for streaming differential privacy" (FOCS 2024); McMahan, Xu, Zhang (2024).
"""

import numpy as np

from fedmf.checks import check_at_least
from fedmf.errors import SettingError
from fedmf.mechanisms.arrays import Float64
from fedmf.mechanisms.families.protocol import Family
from fedmf.mechanisms.families.toeplitz_loss import constant_rate, log_loss
from fedmf.mechanisms.fitted import Fitted
from fedmf.mechanisms.streams.recurrence import RecurrentStream, StrategyForm, rounded_with_cost, tables_of
from fedmf.mechanisms.workload import Workload

DEFAULT_BUFFERS = 5
MOST_BUFFERS = 16


def fit(workload: Workload, buffers: int | None = None) -> Fitted:
    """Return the one table of all rounds, with `buffers` buffers (5 if None), and its cost.

    Optimised for a constant learning rate; the cost is that of the workload itself. Raises `SettingError` for
    fewer than 1 or more than 16 buffers.
    """
    buffers = DEFAULT_BUFFERS if buffers is None else buffers
    check_at_least("buffers", buffers, 1)
    if buffers > MOST_BUFFERS:
        raise SettingError(f"buffers is {buffers}; decays run together beyond {MOST_BUFFERS}: ask for fewer.")
    theta, omega = _optimise(constant_rate(workload), buffers)
    one = np.ones((1, buffers))
    form = StrategyForm(np.diag(theta)[None], one, omega[None], np.ones(1))
    return rounded_with_cost(tables_of(form), workload)


def coefficients(theta: Float64, omega: Float64, rounds: int) -> Float64:
    """Return the T coefficients of C."""
    return np.concatenate([[1.0], _powers(theta, rounds - 1) @ omega])


def inverse_coefficients(theta: Float64, omega: Float64, rounds: int) -> Float64:
    """Return the T coefficients of C^-1, by the symmetric eigenproblem."""
    root = np.sqrt(omega)
    decays, vectors = np.linalg.eigh(np.diag(theta) - np.outer(root, root))
    return np.concatenate([[1.0], -_powers(decays, rounds - 1) @ (vectors.T @ root) ** 2])


def _powers(decays: Float64, count: int) -> Float64:
    """Return decays^k for k = 0 .. count - 1, shape (count, r)."""
    powers: Float64 = decays[None, :] ** np.arange(count)[:, None]
    return powers


def _optimise(workload: Workload, buffers: int) -> tuple[Float64, Float64]:
    """Return theta and omega: L-BFGS on logarithms, from a quadrature of the square root's coefficients."""
    start = np.concatenate(_start(workload.rounds, buffers))
    from scipy.optimize import minimize  # only these families search by it

    found = minimize(
        _objective, start, args=(workload,), jac=True, method="L-BFGS-B", options={"maxiter": 500}
    )
    return _parameters(found.x)


def _start(rounds: int, buffers: int) -> tuple[Float64, Float64]:
    """Return logit theta and log omega of a quadrature of the square root's coefficients.

    They are near 1/sqrt(pi k), which is the integral of e^-sk / (pi sqrt(s)) ds.
    """
    rates = np.geomspace(1 / (rounds + 1), 1, buffers + 2)[1:-1]
    spacing = np.log(rounds + 1) / (buffers + 1)
    return np.log((1 - rates) / rates), np.log(np.sqrt(rates) * spacing / np.pi)


def _parameters(point: Float64) -> tuple[Float64, Float64]:
    """Return theta in (0, 1) and omega > 0."""
    logits, logs = np.split(point, 2)
    return 1 / (1 + np.exp(-logits)), np.exp(logs)


def _objective(point: Float64, workload: Workload) -> tuple[float, Float64]:
    """Return log L and its gradient by logit theta and log omega; infinite where C^-1 explodes."""
    theta, omega = _parameters(point)
    rounds = workload.rounds
    with np.errstate(over="ignore", invalid="ignore"):
        noising = inverse_coefficients(theta, omega, rounds)
    if not np.abs(noising).max() < 1e100:
        return np.inf, np.zeros_like(point)
    loss, gradient = log_loss(coefficients(theta, omega, rounds), noising, workload)
    powers = _powers(theta, rounds - 1)  # d c_k / d omega_i = theta_i^(k-1)
    by_omega = gradient[1:] @ powers
    ages = np.arange(rounds - 1)  # d c_k / d theta_i = omega_i (k-1) theta_i^(k-2)
    by_theta = omega * ((gradient[1:] * ages) @ powers) / theta
    return loss, np.concatenate([by_theta * theta * (1 - theta), by_omega * omega])


BLT = Family("blt", fit, RecurrentStream, settings=("buffers",))
