"""Who takes part when: every epoch splits the clients into disjoint cohorts.

The privacy theorem covers one participation per client and epoch (docs/privacy.md, section 2). The schedule
gives at most one; the register refuses a second one at the moment of release, whatever path led there
(retry, resume, duplicate).
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fedmf.checks import check_at_least
from fedmf.errors import ParticipationError
from fedmf.randomness import PublicSeed
from fedmf.register import Register

__all__ = ["Register", "epoch_cohorts", "rounds_that_fit"]


def rounds_that_fit(clients: int, cohort_size: int, rounds_per_epoch: int | None = None) -> int:
    """Return the rounds per epoch: `rounds_per_epoch`, or floor(clients / cohort_size) if None.

    Raises `ParticipationError` when disjoint cohorts do not fit: cohort_size * rounds_per_epoch <= clients is
    required.

    >>> rounds_that_fit(1437, 64)
    22
    """
    check_at_least("clients", clients, 1)
    check_at_least("cohort_size", cohort_size, 1)
    largest = clients // cohort_size
    if largest == 0:
        raise ParticipationError(
            f"cohort_size is {cohort_size}, but there are only {clients} clients; at most {clients} fits."
        )
    if rounds_per_epoch is None:
        return largest
    check_at_least("rounds_per_epoch", rounds_per_epoch, 1)
    if rounds_per_epoch > largest:
        smaller = clients // rounds_per_epoch
        raise ParticipationError(
            f"{rounds_per_epoch} disjoint cohorts of {cohort_size} need "
            f"{rounds_per_epoch * cohort_size} clients, but there are {clients}; "
            f"the largest rounds_per_epoch that fits is {largest}"
            + (f", the largest cohort_size that fits is {smaller}." if smaller else ".")
        )
    return rounds_per_epoch


@lru_cache(maxsize=2)  # every round of an epoch asks for the same arrangement of all clients
def epoch_cohorts(
    clients: int, cohort_size: int, rounds_per_epoch: int, *, epoch: int, seed: PublicSeed
) -> npt.NDArray[np.int64]:
    """Return the disjoint cohorts of `epoch` (0-based) as client indices.

    Shape (rounds_per_epoch, cohort_size), int64, read-only: a uniformly random arrangement that anyone who knows
    the public seed can redo: no amplification by sampling is claimed.
    """
    rounds_that_fit(clients, cohort_size, rounds_per_epoch)
    order = seed.generator("cohorts", epoch).permutation(clients)
    order.setflags(write=False)
    return order[: cohort_size * rounds_per_epoch].reshape(rounds_per_epoch, cohort_size)
