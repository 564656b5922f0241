"""The trainer that stays in a process from client to client, for as long as nothing has spoilt it.

What one client's data did to the model or to the device must not reach the next client: its update would then
depend on two clients' data, which no clipping covers (docs/privacy.md).
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from client.data import Examples
from client.privatize import DevicePrivatizer, Kept, privatize
from client.training import Trainer, pick_device, probe_device
from fedmf.errors import SettingError
from fedmf.randomness import SecretKey
from fedmf.updates.client_plan import ClientPlan
from fedmf.updates.vectors import Vector

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sent:
    """What all clients of a message start from, `model`, and scale their updates by, if by anything: (d,) float32."""

    model: Vector
    scale: Vector | None
    _copies: dict[torch.device, tuple[Tensor, Tensor | None]] = field(default_factory=dict, repr=False)

    def on(self, device: torch.device) -> tuple[Tensor, Tensor | None]:
        """Return both on `device`, copied there once for all clients of the message."""
        if device not in self._copies:
            scale = None if self.scale is None else torch.tensor(self.scale, device=device)
            self._copies[device] = torch.tensor(self.model, device=device), scale
        return self._copies[device]


def has_own_memory(device: torch.device) -> bool:
    """Return whether what is on `device` has to be copied to be on the host."""
    return device.type != "cpu"


def _check_shape(trained: Sequence[int], sent: Sent) -> None:
    if tuple(trained) != sent.model.shape:
        raise SettingError(
            f"training gave an update of shape {tuple(trained)}; it must be {sent.model.shape}."
        )


class Resident:
    """A trainer made by `make` at the first turn, and again after one that raised, and what privatizes its updates by `plan`.

    On a device with memory of its own updates are privatized there: of a client, its kept values alone come back.

    `is_lost` after a turn that left the device without an answer: a failed assertion on a CUDA device ends every
    later operation of this process on it, a new trainer's too. Only another process can use the device again.

    Making a trainer reads no client's data. What it raises in `begin` is therefore raised: a run that ends at it states
    nothing about any client. `restore` takes it for a lost device: it is due to this process or to what it has played.
    """

    def __init__(self, make: Callable[[], Trainer], plan: ClientPlan) -> None:
        self._make, self._plan = make, plan
        self._trainer: Trainer | None = None
        self._device: torch.device | None = None  # of the last trainer, None before any was made
        self.is_lost = False

    def begin(self) -> Trainer:
        """Make the trainer before any turn, and return it; raises what making it raises."""
        trainer = self._make()
        self._device = trainer.device
        self._there = DevicePrivatizer(self._plan, trainer.device) if has_own_memory(trainer.device) else None
        self._trainer = trainer
        return trainer

    def restore(self) -> None:
        """Make the trainer again where the last turn has spoilt it, before the next client's data are read.

        Where that fails `is_lost`: a client that is not asked yet is not at fault, a new process may still have room.
        """
        if self._trainer is not None or self._device is None or self.is_lost:
            return
        try:
            self.begin()
        except (Exception, SystemExit):
            log.exception("the trainer cannot be made again; this process cannot play another client")
            self.is_lost = True

    def play(
        self,
        sent: Sent,
        examples: Examples,
        order: np.random.Generator,
        mask_key: SecretKey,
        fixed_digest: str = "",
    ) -> Kept:
        """Train on one client's examples and privatize the update.

        What the turn raises is raised once the device was tried. `fixed_digest` is that of what does not train of the
        model that was sent; `SettingError` where the trainer's own is another.
        """
        try:
            # Made inside: an assertion that failed on a device may be raised only when the next trainer is put there.
            trainer, self._trainer = self._trainer or self.begin(), None  # kept only where the turn ends well
            if fixed_digest and trainer.fixed_digest != fixed_digest:
                raise SettingError(
                    "what does not train of this model (frozen parameters and buffers) differs from the server's: the "
                    "file that model.start names, or the code of the model, is another one here."
                )
            if self._there is None:
                trained = trainer.train(sent.model, examples.x, examples.y, order=order)
                _check_shape(trained.shape, sent)
                kept = privatize(trained, self._plan, mask_key, start=sent.model, scale=sent.scale)
            else:
                start, scale = sent.on(trainer.device)
                there = trainer.train_there(start, examples.x, examples.y, order=order)
                _check_shape(there.shape, sent)
                kept = self._there.privatize(there, mask_key, start=start, scale=scale)
        except (Exception, SystemExit):
            try:  # before any trainer was made, the device that it would be given
                probe_device(self._device or pick_device("auto"))
            except Exception:
                log.exception("the device does not answer any more; this process cannot use it again")
                self.is_lost = True
            raise
        self._trainer = trainer
        return kept
