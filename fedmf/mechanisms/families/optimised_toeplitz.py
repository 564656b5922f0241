"""Toeplitz strategy matrices with optimised coefficients: a few bands, or powers in a few buffers.

For C with coefficients c, c_0 = 1, the sensitivity is ||c|| and B = A C^-1 has coefficients p, so that for a
constant learning rate

    log L = log ||c||^2 + log (sum_k (T - k) p_k^2 + later),
    later = c Var(y) + 2 beta b Cov(y, m) + beta^2 a Var(m) = sum_k (c p_k^2 + 2 beta b p_k u_k + beta^2 a u_k^2),

where a, b, c are those of the later rounds (`workload`) and u the coefficients of M_beta C^-1, of which the
momentum m after the last round is made. With q = p / c and r = u / c, quotients of power series, the derivatives of
p_k and u_k by c_j are -q_{k-j} and -r_{k-j}. L-BFGS minimises this for a constant learning rate; the cost is that of the
workload itself.

`banded_toeplitz` has few bands: the shape of the banded matrix mechanisms. Choquette-Choo et al., "(Amplified) banded
matrix factorization" (NeurIPS 2023); McKenna, "Scaling up the banded matrix factorization mechanism" (2024). Here for one
participation. A baseline: at long epochs its error stays far from the optimum.

`blt`, buffered linear Toeplitz matrices, has coefficients 1 and sum_i omega_i theta_i^(k-1). C^-1 has the same form. The
recurrence S' = theta S + x, z = x + omega . S becomes S' = (theta - 1 omega^T) S + z when solved for x; with omega > 0 it
is similar to the symmetric theta - sqrt(omega) sqrt(omega)^T, whose eigenvalues are the decays of C^-1. Sources:
Dvijotham, McMahan, Pillutla, Steinke, Thakurta, "Efficient and near-optimal noise generation for streaming differential
privacy" (FOCS 2024); McMahan, Xu, Zhang (2024).
"""

import numpy as np

from fedmf.mechanisms import workload as workloads
from fedmf.mechanisms.families import Family, chosen
from fedmf.mechanisms.families.square_roots import coefficients as square_root
from fedmf.mechanisms.streams import toeplitz
from fedmf.mechanisms.streams.recurrence import RecurrentStream, StrategyForm, tables_of
from fedmf.mechanisms.streams.toeplitz import ToeplitzStream
from fedmf.mechanisms.workload import Float64, Workload, at_boundaries, recursion

LARGEST = 1e100  # of C^-1, beyond which it cannot be squared


def fit_banded(workload: Workload, buffers: int | None = None) -> ToeplitzStream:
    """Return the stream of `buffers` + 1 bands (8 + 1 if None, at most T).

    Raises `SettingError` for fewer than 0 or more than T - 1 buffers.
    """
    buffers = chosen("buffers", buffers, 8, least=0, most=workload.rounds - 1)
    if buffers == 0:
        return ToeplitzStream(workload.rounds, np.ones(1))
    from scipy.optimize import minimize  # only these families search by it

    start, constant = square_root(workload)[1 : buffers + 1], constant_rate(workload)
    found = minimize(banded_objective, start, args=(constant,), jac=True, method="L-BFGS-B")
    return ToeplitzStream(workload.rounds, np.concatenate([[1.0], found.x]))


def banded_objective(below: Float64, workload: Workload) -> tuple[float, Float64]:
    """Return log L and its gradient by the coefficients below c_0."""
    coefs = np.concatenate([[1.0], below])
    loss, gradient = log_loss(coefs, toeplitz.inverse(coefs, workload.rounds), workload)
    return loss, gradient[1:]


def fit_blt(workload: Workload, buffers: int | None = None) -> RecurrentStream:
    """Return the stream of one table for all rounds, with `buffers` buffers (5 if None).

    Raises `SettingError` for fewer than 1 or more than 16 buffers.
    """
    buffers = chosen("buffers", buffers, 5, most=16)  # beyond 16, decays run together
    from scipy.optimize import minimize  # only these families search by it

    found = minimize(
        blt_objective,
        blt_start(workload.rounds, buffers),
        args=(constant_rate(workload),),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 500},
    )
    theta, omega = _parameters(found.x)
    form = StrategyForm(np.diag(theta)[None], np.ones((1, buffers)), omega[None], np.ones(1))
    return RecurrentStream(workload.rounds, tables_of(form))


def blt_start(rounds: int, buffers: int) -> Float64:
    """Return logit theta and log omega, (2 buffers,), of a quadrature of the square root's coefficients.

    They are near 1/sqrt(pi k), which is the integral of e^-sk / (pi sqrt(s)) ds.
    """
    rates = np.geomspace(1 / (rounds + 1), 1, buffers + 2)[1:-1]
    spacing = np.log(rounds + 1) / (buffers + 1)
    return np.concatenate([np.log((1 - rates) / rates), np.log(np.sqrt(rates) * spacing / np.pi)])


def blt_objective(point: Float64, workload: Workload) -> tuple[float, Float64]:
    """Return log L and its gradient by logit theta and log omega."""
    theta, omega = _parameters(point)
    rounds = workload.rounds
    with np.errstate(over="ignore", invalid="ignore"):
        root = np.sqrt(omega)
        decays, vectors = np.linalg.eigh(np.diag(theta) - np.outer(root, root))
        # The T coefficients of C^-1, by the symmetric eigenproblem.
        noising = np.concatenate([[1.0], -_powers(decays, rounds - 1) @ (vectors.T @ root) ** 2])
    powers = _powers(theta, rounds - 1)  # d c_k / d omega_i = theta_i^(k-1)
    loss, gradient = log_loss(np.concatenate([[1.0], powers @ omega]), noising, workload)
    by_omega = gradient[1:] @ powers
    ages = np.arange(rounds - 1)  # d c_k / d theta_i = omega_i (k-1) theta_i^(k-2)
    by_theta = omega * ((gradient[1:] * ages) @ powers) / theta
    return loss, np.concatenate([by_theta * theta * (1 - theta), by_omega * omega])


def _powers(decays: Float64, count: int) -> Float64:
    return decays[None, :] ** np.arange(count)[:, None]


def _parameters(point: Float64) -> tuple[Float64, Float64]:
    """Return theta in (0, 1) and omega > 0."""
    logits, logs = np.split(point, 2)
    return 1 / (1 + np.exp(-logits)), np.exp(logs)


def constant_rate(workload: Workload) -> Workload:
    """Return the workload with learning rate 1 and as many later rounds: what Toeplitz coefficients are fitted to."""
    (later,) = at_boundaries(np.ones(int(workload.later.c)), workload.momentum, [0])
    return Workload(workload.rounds, workload.momentum, None, later)


def log_loss(coefs: Float64, noising: Float64, workload: Workload) -> tuple[float, Float64]:
    """Return log L and its gradient by `coefs` (length at most T), given the T coefficients of C^-1.

    Infinite where these grow beyond `LARGEST`. `workload` must have a constant learning rate.
    """
    if not np.abs(noising).max() < LARGEST:
        return np.inf, np.zeros(len(coefs))
    rounds = workload.rounds
    decoder = workloads.apply(workload, noising)  # p, the coefficients of B
    averaged = recursion(workload.momentum, noising)  # u
    beta, later = workload.momentum, workload.later
    counts = np.arange(rounds, 0, -1) + later.c  # how often coefficient k is in B, later rounds included
    # Half of the derivatives of the squared error by p and by u.
    by_decoder = counts * decoder + beta * later.b * averaged
    by_averaged = beta * later.b * decoder + beta**2 * later.a * averaged
    error = float(by_decoder @ decoder + by_averaged @ averaged)
    squared_sensitivity = float(coefs @ coefs)
    moved = _correlate(by_decoder, toeplitz.multiply(decoder, noising, rounds), len(coefs))
    if later.a:
        moved = moved + _correlate(by_averaged, toeplitz.multiply(averaged, noising, rounds), len(coefs))
    gradient = 2 * (coefs / squared_sensitivity - moved / error)
    return float(np.log(squared_sensitivity) + np.log(error)), gradient


def _correlate(weights: Float64, influence: Float64, count: int) -> Float64:
    """Return sum_k weights_k influence_{k-j} for j < `count`."""
    return toeplitz.multiply(weights[::-1], influence, len(weights))[::-1][:count]


BANDED_TOEPLITZ = Family("banded_toeplitz", fit_banded, settings=("buffers",))
BLT = Family("blt", fit_blt, settings=("buffers",))
