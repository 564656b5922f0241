"""The trainer that stays in a process from client to client, for as long as nothing has spoilt it.

What one client's data did to the model or to the device must not reach the next client: its update would then
depend on two clients' data, which no clipping covers (docs/privacy.md).
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from client.on_device import DevicePrivatizer
from client.training import Trainer, pick_device, probe_device
from fedmf.errors import SettingError
from fedmf.updates.client_plan import ClientPlan

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Player:
    """What plays a client's turn: a trainer, and what privatizes on its device; None where the host does that."""

    trainer: Trainer
    privatizer: DevicePrivatizer | None

    @classmethod
    def of(cls, trainer: Trainer, plan: ClientPlan) -> "Player":
        """Return the player that `trainer` makes: on its device, if it leaves what it trains there."""
        if not (has_own_memory(trainer.device) and trains_as_ours(trainer)):
            return cls(trainer, None)
        privatizer = DevicePrivatizer(
            bounds=plan.bounds,
            rotation=plan.rotation,
            keep_probability=plan.keep_probability,
            device=trainer.device,
        )
        return cls(trainer, privatizer)


def has_own_memory(device: torch.device) -> bool:
    """Say whether what lies on `device` has to be copied to be on the host."""
    return device.type != "cpu"


def trains_as_ours(trainer: Trainer) -> bool:
    """Say whether neither `update` nor `train`, which give arrays on the host, is the trainer's own."""
    own = type(trainer)
    return all(
        getattr(own, name, None) is getattr(Trainer, name) for name in ("update", "train", "train_there")
    )


class Resident:
    """A player of `plan`, of a trainer made by `make` at the first turn, and again after one that raised.

    `is_lost` after a turn that left the device without an answer: a failed assertion on a CUDA device ends every
    later operation of this process on it, a new trainer's too. Only another process can use the device again.

    Making a trainer reads no client's data. What it raises in `begin` is therefore raised: a run that ends at it says
    nothing of anybody. `restore` takes it for a lost device: it is due to this process or to what it has played.
    """

    def __init__(self, make: Callable[[], Trainer], plan: ClientPlan) -> None:
        self._make, self._plan = make, plan
        self._player: Player | None = None
        self._device: torch.device | None = None  # of the last trainer, None before any was made
        self.is_lost = False

    def begin(self) -> None:
        """Make the trainer before any turn; raises what making it raises."""
        self._player = self._made()

    def restore(self) -> None:
        """Make the trainer anew where the last turn has spoilt it, before the next client's data are read.

        Where that fails `is_lost`: a client that is not asked yet is not at fault, a new process may still have room.
        """
        if self._player is not None or self._device is None or self.is_lost:
            return
        try:
            self._player = self._made()
        except (Exception, SystemExit):
            log.exception("the trainer cannot be made again; this process cannot play another client")
            self.is_lost = True

    @contextmanager
    def turn(self, fixed_digest: str = "") -> Iterator[Player]:
        """Lend the player for one client's turn, in which all belongs that waits for the device.

        What the turn raised is raised once the device was tried. `fixed_digest` is that of what does not train of the
        model that was sent; `SettingError` where the trainer's own is another.
        """
        player, self._player = self._player, None  # kept only where the turn ends well
        try:
            # Made inside: an assertion that failed on a device may be said only when the next trainer is put there.
            player = player or self._made()
            if fixed_digest and player.trainer.fixed_digest != fixed_digest:
                raise SettingError(
                    "what does not train of this model (frozen parameters and buffers) differs from the server's: the "
                    "file that model.start names, or the code of the model, is another one here."
                )
            yield player
        except (Exception, SystemExit):
            self.is_lost = not _answers(self._device)
            raise
        self._player = player

    def _made(self) -> Player:
        trainer = self._make()
        self._device = trainer.device
        return Player.of(trainer, self._plan)


def _answers(device: torch.device | None) -> bool:
    """Return whether a tiny operation works on `device`; before any trainer was made, on the one it would be given."""
    try:
        probe_device(device or pick_device("auto"))
    except Exception:
        log.exception("the device does not answer any more; this process cannot use it again")
        return False
    return True
