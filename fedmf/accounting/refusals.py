"""What the privacy theorem does not cover, refused with the reason.

A run has no option for any of these; the checks are for code that builds on the accountant. Unknown events
are refused in `dp_events`, orders of 1 or below in `renyi.check_order`.

    >>> check_mask("bernoulli")
    >>> check_mask("fixed_size")
    Traceback (most recent call last):
    ...
    fedmf.errors.NotCoveredError: mask is 'fixed_size': exactly k of d coordinates ...
"""

from collections.abc import Hashable, Iterable

from fedmf.checks import check_choice
from fedmf.errors import NotCoveredError, ParticipationError

COVERED_MASK = "bernoulli"
COVERED_WEIGHTING = "uniform"

REFUSED_MASKS = {
    "fixed_size": "exactly k of d coordinates makes coordinates dependent, the theorem needs independent ones, "
    "and its bound is false for orders near 1",
    "top_k": "which coordinates are kept depends on the data, so that the choice itself reveals them",
    "shared": "two clients under one mask lose the amplification: at gamma = .01, kappa = sigma the divergence "
    "is 99 times the theorem's at order 2, 1482 times at order 4",
    "public": "a mask that anyone can recompute amplifies nothing: the coordinates it keeps are a plain "
    "Gaussian release",
    "reused": "a mask is fresh for each client, epoch and round; a second use makes the rounds dependent",
}
REFUSED_WEIGHTINGS = {
    "examples": "the number of a client's examples is private: weights would change the sensitivity of the sum "
    "and the denominator with one client's data",
    "replies": "dividing by the number of replies makes the release depend on who answered; the denominator is "
    "gamma times the planned cohort size",
}


def check_mask(kind: str) -> None:
    """Raise `NotCoveredError` with the reason for a mask that is not independent, secret, fresh Bernoulli."""
    if kind != COVERED_MASK:
        check_choice("mask", kind, (COVERED_MASK, *REFUSED_MASKS))
        raise NotCoveredError(f"mask is {kind!r}: {REFUSED_MASKS[kind]}; use {COVERED_MASK!r}.")


def check_weighting(kind: str) -> None:
    """Raise `NotCoveredError` with the reason for a mean other than the sum over gamma times the planned n."""
    if kind != COVERED_WEIGHTING:
        check_choice("weighting", kind, (COVERED_WEIGHTING, *REFUSED_WEIGHTINGS))
        raise NotCoveredError(
            f"weighting is {kind!r}: {REFUSED_WEIGHTINGS[kind]}; use {COVERED_WEIGHTING!r}."
        )


def check_one_participation(cohorts: Iterable[Iterable[Hashable]]) -> None:
    """Raise `ParticipationError` if a client is in two of an epoch's cohorts, or twice in one.

    The sensitivity accounted is the largest column norm of C, which is one round's worth of one client.

    >>> check_one_participation([[1, 2], [3]])
    """
    seen: dict[Hashable, int] = {}
    for step, cohort in enumerate(cohorts):
        for client in cohort:
            if client in seen:
                raise ParticipationError(
                    f"client {client!r} takes part in rounds {seen[client]} and {step} of one epoch; "
                    "the accounting covers one participation per epoch."
                )
            seen[client] = step
