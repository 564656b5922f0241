"""Coupled streams: the same secrets with one client in and out, so that all noise cancels and its part alone is left.

The statement under test. With every secret held fixed, the releases of an epoch may differ by what the client sent in its
own round alone, D = e_t (s * g), and through W (see `fedmf.audit.stated`)

    ||W D||_2 <= c Delta_2,     ||column j of W D||_2 <= min(c Delta_inf, c Delta_2) for every sent coordinate j,

with c the largest column norm of C that was accounted: the two quantities of the theorem. A stream that exceeds one spends
more than it states, with certainty; `tolerance` bounds the rounding errors. The other clients must send the same in both
streams whatever the models are.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from fedmf.audit.finding import Finding
from fedmf.audit.stated import Stated
from fedmf.errors import SettingError
from fedmf.mechanisms.workload import Float64

L2 = "coupled sensitivity, L2"
LINF = "coupled sensitivity, L-infinity"
OWN_ROUND = "coupled own round"
_ROUNDING = 2.0**-40  # of the float64 arithmetic here, relative


def coupled(
    with_client: npt.ArrayLike,
    without_client: npt.ArrayLike,
    stated: Stated,
    *,
    own_rounds: Sequence[int | None],
    tolerance: npt.ArrayLike = 0.0,
    rotate: Callable[[Float64], Float64] | None = None,
) -> tuple[Finding, ...]:
    """Return three findings of two streams with the same secrets, one client in and out.

    `with_client` and `without_client` are noisy sums (epochs, T, d), `own_rounds` the step of each epoch (from 0) in
    which the client takes part, None for an epoch without it: one participation an epoch is what `Stated` states.
    `tolerance`, a number or (epochs, T, d), bounds the arithmetic error of each entry of their difference. `rotate` takes
    one round's difference (d,) to the coordinates that are sent, of which the L-infinity bound speaks; it keeps lengths.

    Both sensitivities as ratios to what is accounted, and the largest difference in a round that is not the client's, over
    the L2 bound. Where the client moved nothing, all three are inconclusive.
    """
    inside, outside = np.asarray(with_client, np.float64), np.asarray(without_client, np.float64)
    stated.check_shape("the releases with the client", inside, 3)
    if inside.shape != outside.shape:
        raise SettingError(
            f"the releases have shapes {inside.shape} and {outside.shape}; both must have the same."
        )
    steps = range(inside.shape[1])
    if len(own_rounds) != len(inside) or not all(step is None or step in steps for step in own_rounds):
        raise SettingError(
            f"own_rounds is {own_rounds!r}; it must hold a step of {steps} or None for each epoch."
        )
    slack = np.broadcast_to(np.asarray(tolerance, np.float64), inside.shape) / stated.l2_norm
    if not np.all((slack >= 0) & np.isfinite(slack)):
        raise SettingError("tolerance must be finite and at least 0; it bounds an error.")
    with np.errstate(invalid="ignore", over="ignore"):
        moved = (inside - outside) / stated.l2_norm
        is_finite = bool(np.isfinite(moved).all())
        if not is_finite or np.all(np.abs(moved) <= slack):
            where = "the client moved nothing" if is_finite else "a difference that is not finite"
            found = (0.0 if is_finite else np.inf, 1.0, not is_finite, "ratio", where, 1, is_finite)
            return tuple(Finding(test, *found) for test in (L2, LINF, OWN_ROUND))
        sent = moved if rotate is None else np.array([[rotate(row) for row in rows] for rows in moved])
        if not np.allclose(np.linalg.norm(sent, axis=-1), np.linalg.norm(moved, axis=-1), rtol=1e-5, atol=0):
            raise SettingError("rotate changes the length of a row; it must be orthonormal and lose nothing.")
        ratio = 1.0 if stated.linf_norm is None else min(1.0, stated.linf_norm / stated.l2_norm)
        lengths = []
        for number, epoch in enumerate(stated.epochs):
            turn, where = np.abs(epoch.whitening), f"epoch {number}"
            length = float(np.linalg.norm(epoch.whitening @ moved[number]))
            lengths.append(_against(L2, length, turn @ slack[number], epoch.sensitivity, where))
            columns = np.linalg.norm(epoch.whitening @ sent[number], axis=0)
            errors = turn @ np.linalg.norm(
                slack[number], axis=1
            )  # of a rotated row: at most that of the whole
            where += f", coordinate {int(columns.argmax())}"
            lengths.append(_against(LINF, float(columns.max()), errors, epoch.sensitivity * ratio, where))
        elsewhere = np.abs(moved) - slack
    for number, step in enumerate(own_rounds):
        if step is not None:
            elsewhere[number, step] = 0
    place = np.unravel_index(int(elsewhere.argmax()), elsewhere.shape)
    where = f"epoch, round, coordinate {[int(index) for index in place]}"
    outside_own = Finding(OWN_ROUND, float(elsewhere[place]), 0.0, bool(elsewhere[place] > 0), where=where)
    worst = (max(lengths[kind::2], key=lambda one: one.observed - one.limit) for kind in (0, 1))
    return (*worst, outside_own)


def _against(test: str, length: float, errors: Float64, allowed: float, where: str) -> Finding:
    """Return the finding of a length over what is allowed; a ratio that overflows is infinite and refutes."""
    observed = length / allowed
    limit = (1 + float(np.linalg.norm(errors)) / allowed) / (1 - _ROUNDING)
    return Finding(test, observed, limit, not observed <= limit, where=where)
