"""The factorizations of a run that restarts its noise every epoch, with what they cost over the whole run.

Cohorts are drawn again in each epoch, so that columns of different epochs must be orthogonal: C is block-diagonal, one
factorization an epoch, and a client, who takes part in one round of an epoch, moves C x by at most the sensitivity of
that epoch's block. Errors add up, because the model lives on: round (e, t) holds what its own epoch's noise makes of
it and what the noise of all earlier epochs left in momentum and model.

    squared error of round (e, t) = error_e(t)^2 + Syy + 2 phi Smy + phi^2 Smm,
    phi = sum_{s <= t} eta_s beta^(s + 1),

where S sums what the epochs before e left. The sum over all rounds is sum_e L_e, with L_e the loss of epoch e on its
workload, later rounds included. All figures are per unit of noise multiplier and clip norm.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedmf.checks import check_at_least
from fedmf.errors import SettingError
from fedmf.mechanisms import workload as workloads
from fedmf.mechanisms.factorization import Factorization, RoundErrors
from fedmf.mechanisms.workload import Float64, Workload


@dataclass(frozen=True, eq=False)
class RunFactorization(RoundErrors):
    """One factorization for each epoch of a run, each costed on the epoch's workload with its later rounds.

    `as_run` makes it of any epochs; those given here must be a run already.
    """

    epochs: tuple[Factorization, ...]

    @property
    def family(self) -> str:
        """The name of the family."""
        return self.epochs[0].family

    @property
    def rounds(self) -> int:
        """Rounds in an epoch, T."""
        return self.epochs[0].rounds

    @property
    def is_restart_of_one(self) -> bool:
        """Whether all epochs have the same stream, so that none knows what follows it."""
        return len({epoch.fingerprint for epoch in self.epochs}) == 1

    @property
    def sensitivity(self) -> float:
        """The largest sensitivity of any epoch."""
        return max(epoch.sensitivity for epoch in self.epochs)

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """The workload of each epoch, on which it is costed."""
        return tuple(epoch.workload for epoch in self.epochs)

    @property
    def root_loss(self) -> float:
        """The root of the squared error summed over all rounds of the run."""
        return float(np.sqrt(sum(epoch.root_loss**2 for epoch in self.epochs)))

    @property
    def seconds(self) -> float:
        """CPU time of all fits."""
        return sum({id(epoch.stream): epoch.seconds for epoch in self.epochs}.values())

    @cached_property
    def per_round_error(self) -> Float64:
        """The error of every round of the run, shape (E T,) float64."""
        left = np.zeros((2, 2))  # S: the covariance of (m, y) that earlier epochs left
        squares = []
        for epoch in self.epochs:
            beta, eta = epoch.workload.momentum, workloads.rates(epoch.workload)
            decay = beta ** np.arange(1.0, self.rounds + 1)
            phi = np.cumsum(eta * decay)
            squares.append(epoch.per_round_error**2 + left[1, 1] + 2 * phi * left[0, 1] + phi**2 * left[0, 0])
            carry = np.array([[decay[-1], 0.0], [phi[-1], 1.0]])  # (m, y) over the epoch, its own noise apart
            left = carry @ left @ carry.T + epoch.left
        return np.asarray(np.sqrt(np.concatenate(squares)))

    @cached_property
    def per_round_reach(self) -> Float64:
        """What every round's model holds of a row of ones in all rounds so far, A 1: shape (E T,) float64.

        The signal that goes with `per_round_error`: rows of norm at most 1 move the model by at most this.
        """
        rates = np.concatenate([workloads.rates(workload) for workload in self.workloads])
        run = workloads.momentum(len(rates), self.workloads[0].momentum, tuple(rates.tolist()))
        return np.asarray(workloads.apply(run, np.ones((len(rates), 1)))[:, 0])

    @cached_property
    def fingerprint(self) -> str:
        """A digest of what all streams compute."""
        return hashlib.sha256(" ".join(epoch.fingerprint for epoch in self.epochs).encode()).hexdigest()


def as_run(epochs: Sequence[Factorization]) -> RunFactorization:
    """Return the run of these epochs, one after another, each costed with the later rounds that it has there.

    The streams and each epoch's own rates stay. Raises `SettingError` for no epoch, and for epochs of different families,
    lengths or momenta.
    """
    check_at_least("the number of epochs", len(epochs), 1)
    own = [epoch.workload for epoch in epochs]
    kinds = dict.fromkeys(
        f"{epoch.rounds} rounds of {epoch.family} with momentum {epoch.workload.momentum}" for epoch in epochs
    )
    if len(kinds) > 1:
        raise SettingError(f"epochs have {', '.join(kinds)}; all epochs of a run must have the same.")
    rates = None
    if any(workload.learning_rates is not None for workload in own):
        rates = tuple(np.concatenate([workloads.rates(workload) for workload in own]).tolist())
    run = workloads.of_run(own[0].rounds, len(own), own[0].momentum, rates)
    return RunFactorization(
        tuple(epoch.costed_on(workload) for epoch, workload in zip(epochs, run, strict=True))
    )


def restarted(epoch: Factorization, epochs: int) -> RunFactorization:
    """Return the run of `epochs` epochs that all have the stream of `epoch`, its learning rates in each of them.

    What a mechanism costs over a run that does not know it: the papers' restart.

    >>> from fedmf.mechanisms import design, prefix_sum
    >>> [round(error, 3) for error in restarted(design("independent", prefix_sum(2)), 2).per_round_error.tolist()]
    [1.0, 1.414, 1.732, 2.0]
    """
    return as_run((epoch,) * epochs)
