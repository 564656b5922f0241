"""From two states per pole to a handful of buffers: time-varying balanced truncation.

Before round t the state sigma_t matters by what can have entered it, the reach Gramian

    Wc_{t+1} = F_t (Wc_t + h_t^2 e e^T) F_t^T,

and by what it will still do to the outputs z, the observability Gramian Wo_t = lam_t lam_t^T + F_t^T Wo_{t+1}
F_t. The eigenvectors of Wc Wo with the largest eigenvalues span the r states worth keeping: with T_t Z_t = I
the reduced recurrence is F -> T_{t+1} F_t Z_t, g -> T_{t+1} g_t, lam -> Z_t^T lam_t. The subspaces are
nested, so that one reduction to the most buffers holds every smaller one in its leading entries.

The truncation need not be accurate for privacy: column norms and loss are computed from what results.
"""

from collections.abc import Iterator

import numpy as np

from fedmf.mechanisms.arrays import Float64
from fedmf.mechanisms.optimum.pole_process import Innovations, PoleProcess, inputs, sandwich, transport
from fedmf.mechanisms.streams.recurrence import StrategyForm

CHUNK = 256  # rounds whose Gramians are held at once
JITTER = 1e-14  # relative; makes a semidefinite Gramian factorable
MOST_JITTER = 1e-8  # rounding over many rounds and states can leave an eigenvalue further below 0
NEGLIGIBLE = 1e-13  # eigenvalues of Wc Wo below this fraction of the largest are rounding noise


def truncate(process: PoleProcess, inner: Innovations, buffers: int) -> StrategyForm:
    """Return C reduced to `buffers` states; states that nothing has reached are zero."""
    rounds = len(inner.c)
    r = min(buffers, process.states)
    form = StrategyForm(
        np.zeros((rounds, buffers, buffers)),
        np.zeros((rounds, buffers)),
        np.zeros((rounds, buffers)),
        inner.c,
    )
    entering = inputs(process)
    after = np.zeros((1, r, process.states))  # T of the round behind the chunk; nothing follows the last one
    for part, reach, observed in _gramians(process, inner):
        project, lift = _balance(reach, observed, r)  # T_t and Z_t
        following = np.concatenate([project[1:], after])  # T_{t+1}
        transposed = process.transition[part].swapaxes(1, 2)  # F_t = Phi_t^T
        # T_{t+1} F_t Z_t, T_{t+1} g_t and Z_t^T lam_t
        form.F[part, :r, :r] = following @ transport(transposed, lift)
        form.g[part, :r] = np.einsum("tri,ti->tr", following, entering[part])
        form.lam[part, :r] = np.einsum("tir,ti->tr", lift, inner.lam[part])
        after = project[:1]
    return form


def _gramians(process: PoleProcess, inner: Innovations) -> Iterator[tuple[slice, Float64, Float64]]:
    """Yield (rounds, Wc, Wo) chunk by chunk from the last; Wc is recomputed from the start of each chunk."""
    rounds = len(inner.c)
    starts = range(0, rounds, CHUNK)
    size = (process.states, process.states)
    checkpoints = [np.zeros(size)]
    for start in starts[:-1]:
        checkpoints.append(_reach(process, range(start, start + CHUNK), checkpoints[-1])[-1])
    observed = np.zeros(size)
    for start, checkpoint in zip(reversed(starts), reversed(checkpoints), strict=True):
        part = range(start, min(start + CHUNK, rounds))
        watched = _observe(process, inner, part, observed)
        observed = watched[0]
        yield slice(part.start, part.stop), _reach(process, part, checkpoint)[:-1], watched


def _reach(process: PoleProcess, part: range, before: Float64) -> Float64:
    """Return Wc of the rounds in `part` and of the one behind, shape (len + 1, sK, sK)."""
    rounds = slice(part.start, part.stop)
    read = process.scale[rounds, None] * process.readout[rounds].repeat(process.transition.shape[3], axis=1)
    return reach(process.transition[rounds], read, before)


def _observe(process: PoleProcess, inner: Innovations, part: range, behind: Float64) -> Float64:
    """Return Wo of the rounds in `part`, shape (len, sK, sK), from the one behind the last."""
    rounds = slice(part.start, part.stop)
    return observe(process.transition[rounds], inner.lam[rounds], behind)


def reach(transition: Float64, read: Float64, before: Float64) -> Float64:
    """Return W, then F (W + read read^T) F^T for each round in turn, F = Phi^T."""
    gramians = np.empty((len(read) + 1, *before.shape))
    gramians[0] = before
    for t in range(len(read)):
        entered = gramians[t] + np.multiply.outer(read[t], read[t])
        gramians[t + 1] = sandwich(transition[t].swapaxes(0, 1), entered)
    return gramians


def observe(transition: Float64, lam: Float64, behind: Float64) -> Float64:
    """Return F^T W F + lam lam^T for each round from the last to the first, in the order of the rounds."""
    gramians = np.empty((len(lam), *behind.shape))
    for t in range(len(lam) - 1, -1, -1):
        behind = sandwich(transition[t], behind)
        behind += np.multiply.outer(lam[t], lam[t])
        gramians[t] = behind
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
