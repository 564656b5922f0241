"""Sabotage of keys and masks: keys that stand still, and masks that several clients share."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from experiments.audit.sabotage.hooks import Sabotage, patched
from fedmf.randomness import SecretKey
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
        "a ratchet that stands still",
        "all epochs have the first one's key",
        caught_by=("residual correlation", "mask correlation"),
        patches=standing_still,
    ),
)
