"""Sabotage of keys and masks: keys that stand still, and masks that several clients share."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

import client.privatize
from experiments.audit.sabotage.hooks import Sabotage, patched
from fedmf.randomness import SecretKey
from fedmf.updates import wire
from server.state import Secrets
from server.strategy import FedMF


class SharedMaskKey(SecretKey):
    """A secret with one mask key for all clients of a round: the fault that voids the amplification."""

    def mask_key(self, client: str, step: int) -> SecretKey:
        """Return one key for all clients."""
        return super().mask_key("everyone", step)

    def ratchet(self) -> SecretKey:
        """Return the next epoch's secret, as broken as this one."""
        return SharedMaskKey(super().ratchet().reveal())


def with_shared_mask(secret: SecretKey) -> SecretKey:
    """Return the run secret that gives everyone the same mask."""
    return SharedMaskKey(secret.reveal())


@dataclass(frozen=True, repr=False)
class LeaderKey(SecretKey):
    """A secret that gives each client the mask of its leader."""

    leaders: dict[str, str] = field(default_factory=dict)

    def mask_key(self, client: str, step: int) -> SecretKey:
        """Return the key of the client's leader."""
        return super().mask_key(self.leaders.get(client, client), step)


class PairedMasks(FedMF):
    """A strategy whose cohorts are split into pairs, two clients of one mask each."""

    @property
    def _secrets(self) -> Secrets:
        cohort = self.population.cohort(self.plan, self.state.round + 1)
        leaders = {client: cohort[place - place % 2] for place, client in enumerate(cohort)}
        secrets = super()._secrets
        return replace(secrets, key=LeaderKey(secrets.key.reveal(), leaders))


class MasksSharedInTheLastEpoch(FedMF):
    """A strategy that gives everyone the same mask in the last epoch."""

    @property
    def _secrets(self) -> Secrets:
        secrets = super()._secrets
        if secrets.epoch < self.plan.participation.epochs - 1:
            return secrets
        return replace(secrets, key=SharedMaskKey(secrets.key.reveal()))


@dataclass(frozen=True, repr=False)
class SameMasksKey(SecretKey):
    """A secret whose masks hang on the client and on nothing else: the same in all rounds and epochs."""

    first: SecretKey | None = None

    def mask_key(self, client: str, step: int) -> SecretKey:
        """Return the client's key of the first epoch, whatever the round."""
        return (self.first or SecretKey(self.reveal())).mask_key(client, 0)

    def ratchet(self) -> SecretKey:
        """Return the next epoch's secret, as broken as this one."""
        return SameMasksKey(super().ratchet().reveal(), self.first or SecretKey(self.reveal()))


def with_the_same_masks(secret: SecretKey) -> SecretKey:
    """Return the run secret that gives a client the same mask in all epochs."""
    return SameMasksKey(secret.reveal())


@contextmanager
def standing_still() -> Iterator[None]:
    """Let the ratchet return the key that it was given."""
    with patched((SecretKey, "ratchet", lambda self: self)):
        yield


@dataclass(frozen=True, repr=False)
class ReturningKey(SecretKey):
    """A secret that gives each client in each round the mask of somebody in a round of the first epoch."""

    first: SecretKey | None = None
    owners: dict[tuple[str, int], tuple[str, int]] = field(default_factory=dict)

    def mask_key(self, client: str, step: int) -> SecretKey:
        """Return the first epoch's key of whose mask it is."""
        assert self.first is not None
        return self.first.mask_key(*self.owners[client, step])


class MasksReturnElsewhere(FedMF):
    """A strategy whose later epochs use the first one's masks, each for another client in another round or place."""

    _first: SecretKey | None = None

    @property
    def _secrets(self) -> Secrets:
        secrets = super()._secrets
        if secrets.epoch == 0:
            self._first = SecretKey(secrets.key.reveal())
            return secrets
        ours, theirs = self._places(secrets.epoch), self._places(0)
        turned = [theirs[turn:] + theirs[:turn] for turn in range(1, len(theirs))]
        chosen = min(turned, key=lambda owners: sum(map(_is_alike, ours, owners)))
        owners = {one[:2]: other[:2] for one, other in zip(ours, chosen, strict=True)}
        return replace(secrets, key=ReturningKey(secrets.key.reveal(), self._first, owners))

    def _places(self, epoch: int) -> list[tuple[str, int, int]]:
        """Return (client, step, place in the cohort) of an epoch, in order."""
        rounds = self.plan.participation.rounds_per_epoch
        return [
            (client, step, place)
            for step in range(rounds)
            for place, client in enumerate(self.population.cohort(self.plan, epoch * rounds + step + 1))
        ]


def _is_alike(one: tuple[str, int, int], other: tuple[str, int, int]) -> bool:
    return one[0] == other[0] or one[1:] == other[1:]


@contextmanager
def one_mask_moved() -> Iterator[None]:
    """Give all clients of a round one mask, moved by as many coordinates as the client's number."""
    honest_key, honest = SecretKey.mask_key, wire.coordinates
    moved: dict[bytes, tuple[SecretKey, int]] = {}

    def mask_key(self: SecretKey, client: str, step: int) -> SecretKey:
        own = honest_key(self, client, step)
        moved[own.reveal()] = honest_key(self, "everyone", step), int(client) + 1
        return own

    def coordinates(key: SecretKey, dimension: int, keep_probability: float) -> npt.NDArray[np.int64]:
        shared, shift = moved[key.reveal()]
        return np.sort((honest(shared, dimension, keep_probability) + shift) % dimension)

    with patched(
        (SecretKey, "mask_key", mask_key),
        (wire, "coordinates", coordinates),
        (client.privatize, "coordinates", coordinates),
    ):
        yield


SHARED_MASK = Sabotage(
    "one mask for all",
    "all clients of a round are given the same mask key",
    caught_by=("mask correlation", "many runs"),
    masks=True,
    secret=with_shared_mask,
)

MASKS = (
    SHARED_MASK,
    Sabotage(
        "masks shared by pairs",
        "two clients of a cohort share a mask",
        caught_by=("mask correlation",),
        masks=True,
        strategy=PairedMasks,
    ),
    Sabotage(
        "one mask for all in the last epoch",
        "in the last epoch all clients of a round are given the same mask key",
        caught_by=("mask correlation",),
        masks=True,
        strategy=MasksSharedInTheLastEpoch,
    ),
    Sabotage(
        "the same masks in all epochs",
        "a client keeps the same coordinates whenever it takes part",
        caught_by=("mask correlation",),
        masks=True,
        secret=with_the_same_masks,
    ),
    Sabotage(
        "masks that return at another place",
        "later epochs use the first one's masks, each for another client in another round or place",
        caught_by=("mask correlation",),
        masks=True,
        strategy=MasksReturnElsewhere,
    ),
    Sabotage(
        "one mask for all, moved",
        "all clients of a round are given one mask, moved by as many coordinates as the client's number",
        caught_by=("mask correlation",),
        masks=True,
        patches=one_mask_moved,
    ),
    Sabotage(
        "a ratchet that stands still",
        "all epochs have the first one's key",
        caught_by=("residual correlation", "mask correlation"),
        patches=standing_still,
    ),
)
