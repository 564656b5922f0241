"""Coupled streams: the same secrets with one client in and out, so that all noise cancels and its part alone is left.

The statement under test. With every secret held fixed, the releases of an epoch may differ by what the client sent in its
own round alone, D = e_t (s * g), and through W (see `fedmf.audit.stated`)

    ||W D||_2 <= c Delta_2,     ||column j of W D||_2 <= min(c Delta_inf, c Delta_2) for every sent coordinate j,

with c the largest column norm of C that was accounted. These are the two quantities of the theorem (docs/privacy.md,
section 2: t_j and their sum). A stream that exceeds one spends more than it states, for certain and not with some
probability: there is no law here but arithmetic, of which `tolerance` is a bound.

Holds where the others send the same in both streams whatever the models are: the audit gives them vectors instead of data.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from fedmf.audit.finding import Finding, at_round
from fedmf.audit.stated import Stated, numbers, own_steps, spread
from fedmf.checks import check_choice, is_finite_number
from fedmf.choices import ADJACENCIES
from fedmf.errors import SettingError
from fedmf.mechanisms.arrays import Float64

L2 = "coupled sensitivity, L2"
LINF = "coupled sensitivity, L-infinity"
OWN_ROUND = "coupled own round"
WHOLE_VECTOR = "coupled whole vector"

_ROUNDING = (
    2.0**-40
)  # of the float64 arithmetic here, relative; W is accurate to its condition number times 2^-53

_ISOMETRY = 1e-5  # relative, of lengths: float32 rotations of a million numbers err by less


def coupled(
    with_client: npt.ArrayLike,
    without_client: npt.ArrayLike,
    stated: Stated,
    *,
    own_rounds: Sequence[int | None],
    tolerance: npt.ArrayLike = 0.0,
    rotate: Callable[[Float64], Float64] | None = None,
    adjacency: str = "zero_out",
) -> tuple[Finding, ...]:
    """Return what two streams of releases with the same secrets, one client in and out, say of its influence.

    `with_client` and `without_client` are noisy sums (epochs, T, d), `own_rounds` the step of each epoch (0-based) in
    which the client takes part, None for an epoch without it: one participation an epoch is what `Stated` states, and a
    stream whose clients take part more often in one epoch cannot be stated here. `tolerance`, a number or (epochs, T, d), bounds the
    arithmetic error of each entry of their difference. `rotate` takes one round's difference (d,) to the coordinates that
    are sent, of which the L-infinity bound speaks; it must be linear, orthonormal and lose nothing: a row of (d,) or more
    numbers of the same length. With `adjacency` "replace" the
    client sends one vector or another, and twice the bounds are allowed.

    Three findings: both sensitivities as ratios to what is accounted, worst epoch first, and the largest difference in a
    round that is not the client's, over the L2 bound. Where the client moved nothing at all, nothing was tested: no finding
    refutes, and each says `moved nothing` (its `is_inconclusive`). Raises `SettingError` for shapes and values that do not
    fit.
    """
    with_client, without_client = (
        numbers(f"the releases {word} the client", given)
        for word, given in (("with", with_client), ("without", without_client))
    )
    stated.check_shape("the releases with the client", with_client)
    if with_client.shape != without_client.shape or with_client.ndim != 3:
        raise SettingError(
            f"the releases have shapes {with_client.shape} and {without_client.shape}; both must be (epochs, T, d)."
        )
    check_choice("adjacency", adjacency, ADJACENCIES)
    if rotate is not None and not callable(rotate):
        raise SettingError(f"rotate is {rotate!r}; it must be a function of one row, or None.")
    steps = own_steps(own_rounds, stated)
    factor = 2.0 if adjacency == "replace" else 1.0
    with np.errstate(invalid="ignore", over="ignore"):
        difference = with_client - without_client
    slack = spread("tolerance", tolerance, difference.shape)
    if not (np.isfinite(slack).all() and (slack >= 0).all()):
        raise SettingError("tolerance holds a number that is negative or not finite; it bounds an error.")
    if not np.isfinite(difference).all():
        return _not_finite(difference)
    if not np.any(np.abs(difference) > slack):
        where = "the client moved nothing beyond the tolerance"
        return tuple(
            Finding(test, 0.0, 1.0, False, None, where, is_inconclusive=True)
            for test in (L2, LINF, OWN_ROUND)
        )
    scale = _exponent(difference, slack)
    ours, errors = np.ldexp(difference, -scale), np.ldexp(slack, -scale)
    sent = ours if rotate is None else _rotated(rotate, ours)
    l2 = [_l2(stated, epoch, ours[epoch], errors[epoch], factor, scale) for epoch in range(len(steps))]
    linf = [_linf(stated, epoch, sent[epoch], errors[epoch], factor, scale) for epoch in range(len(steps))]
    return (
        max(l2, key=lambda finding: finding.observed - finding.limit),
        max(linf, key=lambda finding: finding.observed - finding.limit),
        _elsewhere(stated, difference, slack, steps),
    )


def _exponent(*arrays: Float64) -> int:
    """Return the power of two above all entries: divided by it, exactly, no square of them overflows."""
    return int(np.frexp(max(float(np.abs(array).max()) for array in arrays))[1])


def _against(test: str, length: float, error: float, allowed: float, scale: int, where: str) -> Finding:
    """Return the finding of a length, known to `error`, over what is `allowed`; the first two in units of 2^`scale`.

    The limit does not hang on the length, so that a ratio beyond float64 is infinite and exceeds it. Raises
    `SettingError` where the limit itself is infinite: nothing would exceed that.
    """
    digits, exponent = np.frexp(allowed)
    with np.errstate(over="ignore", under="ignore"):
        ratio, slack = (float(np.ldexp(value / digits, scale - exponent)) for value in (length, error))
    limit = (1 + slack) / (1 - _ROUNDING)
    if not np.isfinite(limit):
        raise SettingError(
            f"tolerance makes the limit of {test} infinite, so that nothing would exceed it; it bounds errors, which are far "
            "below the bounds."
        )
    ratio = np.inf if np.isnan(ratio) else ratio  # a matrix so large that even the scaled length overflows
    return Finding(test, ratio, limit, ratio > limit, None, where)


def _rotated(rotate: Callable[[Float64], Float64], difference: Float64) -> Float64:
    """Return the rows of (epochs, T, d) in sent coordinates. Raises `SettingError` where that is no rotation of them.

    The length of each row is compared, and on a probe that the sum of two rows goes to the sum.
    """
    epochs, rounds, d = difference.shape
    one, other = np.cos(np.arange(d)), np.sin(1 + np.arange(d))
    rows = np.concatenate([difference.reshape(-1, d), [one, other, one + other]])
    turned = [numbers("what rotate returns", rotate(row.copy())) for row in rows]
    sizes = {row.shape for row in turned}
    if len(sizes) > 1 or turned[0].ndim != 1 or len(turned[0]) < d:
        raise SettingError(
            f"rotate takes rows of {d} numbers to shapes {sorted(sizes)}; it must give one row, of {d} numbers or more."
        )
    sent = np.array(turned)
    if not np.isfinite(sent).all():
        raise SettingError("rotate gives a number that is not finite for a row whose numbers are.")
    before, after = (np.linalg.norm(array, axis=1) for array in (rows, sent))
    gap = np.abs(after - before)
    if np.any(gap > _ISOMETRY * before):
        place = int((gap - _ISOMETRY * before).argmax())
        raise SettingError(
            f"rotate takes a row of length {before[place]:.6g} to one of length {after[place]:.6g}; it must be orthonormal "
            "and lose nothing."
        )
    if np.linalg.norm(sent[-1] - sent[-2] - sent[-3]) > 2 * _ISOMETRY * (before[-2] + before[-3]):
        raise SettingError(
            "rotate takes the sum of two rows to something else than their sum; it must be linear."
        )
    return sent[:-3].reshape(epochs, rounds, -1)


def _not_finite(difference: Float64) -> tuple[Finding, ...]:
    epoch, step, coordinate = np.argwhere(~np.isfinite(difference))[0]
    where = f"{at_round(epoch, step)}, coordinate {coordinate}: not finite"
    return tuple(Finding(test, np.inf, 1.0, True, None, where) for test in (L2, LINF, OWN_ROUND))


def _l2(
    stated: Stated, number: int, difference: Float64, slack: Float64, factor: float, scale: int
) -> Finding:
    """Return ||W D||_2 over c Delta_2 of one epoch; D and its error in units of 2^`scale`."""
    epoch = stated.epochs[number]
    allowed = factor * epoch.sensitivity * stated.l2_norm
    length = float(np.linalg.norm(epoch.whitening @ difference))
    error = float(np.linalg.norm(np.abs(epoch.whitening) @ slack))
    return _against(L2, length, error, allowed, scale, f"epoch {number + 1}")


def _linf(stated: Stated, number: int, sent: Float64, slack: Float64, factor: float, scale: int) -> Finding:
    """Return the largest column of W D over min(c Delta_inf, c Delta_2) of one epoch."""
    epoch = stated.epochs[number]
    bound = stated.l2_norm if stated.linf_norm is None else min(stated.linf_norm, stated.l2_norm)
    allowed = factor * epoch.sensitivity * bound
    columns = np.linalg.norm(epoch.whitening @ sent, axis=0)
    # An orthonormal map moves no coordinate by more than the length of the whole error.
    error = float(np.linalg.norm(np.abs(epoch.whitening) @ np.linalg.norm(slack, axis=1)))
    where = f"epoch {number + 1}, coordinate {int(columns.argmax())}"
    return _against(LINF, float(columns.max()), error, allowed, scale, where)


def _elsewhere(stated: Stated, difference: Float64, slack: Float64, steps: tuple[int | None, ...]) -> Finding:
    """Return the largest difference outside the client's own rounds, over Delta_2."""
    outside = np.abs(difference)
    for epoch, step in enumerate(steps):
        if step is not None:
            outside[epoch, step] = 0
    excess = outside - slack
    place = np.unravel_index(int(excess.argmax()), excess.shape)
    observed, limit = float(outside[place]) / stated.l2_norm, float(slack[place]) / stated.l2_norm
    where = f"{at_round(int(place[0]), int(place[1]))}, coordinate {int(place[2])}"
    return Finding(OWN_ROUND, observed, limit, bool(excess[place] > 0), None, where)


def whole_vector(
    rows: npt.ArrayLike, stated: Stated, *, tolerance: npt.ArrayLike = 0.0, step: float = 0.0
) -> Finding:
    """Return the norm of the vector behind several masks, over Delta_2: the finding that a masked part cannot give.

    `rows` (k, D) are what one client's same vector g added to its own rounds, in sent coordinates, under k masks; a
    coordinate shows where it was kept. The theorem needs ||g||_2 <= Delta_2 of the WHOLE vector, while a masked part may
    be that long even where only the server bounds it. `tolerance` bounds the error of each entry; `step` is the
    distance of int8 levels, by which a rounded entry may differ from g: 0 without rounding. Coordinates that no mask kept
    count as 0, so that the figure is a lower bound.
    """
    rows = numbers("rows", rows)
    if rows.ndim != 2:
        raise SettingError(f"rows have shape {rows.shape}; they must be (k, D), a row for each mask.")
    slack = spread("tolerance", tolerance, rows.shape)
    if not (np.isfinite(slack).all() and (slack >= 0).all() and is_finite_number(step) and step >= 0):
        raise SettingError(
            "tolerance or step holds a number that is negative or not finite; they bound errors."
        )
    if not np.isfinite(rows).all():
        return Finding(WHOLE_VECTOR, np.inf, 1.0, True, None, "an entry that is not finite")
    kept = np.abs(rows) > slack
    seen = kept.any(axis=0)
    scale = _exponent(rows, slack, np.array([float(step)]))
    vector = np.ldexp(np.where(kept, rows, 0), -scale).sum(axis=0) / np.maximum(kept.sum(axis=0), 1)
    errors = np.ldexp(slack.max(axis=0), -scale) + np.ldexp(float(step), -scale)
    error = float(np.linalg.norm(np.where(seen, errors, 0.0)))
    where = f"{int(seen.sum())} of {rows.shape[1]} coordinates seen under {len(rows)} masks"
    return _against(WHOLE_VECTOR, float(np.linalg.norm(vector)), error, stated.l2_norm, scale, where)
