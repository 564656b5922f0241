"""The trainer that stays in a process from client to client, for as long as nothing has spoilt it.

What one client's data did to the model or to the device must not reach the next client: its update would then
depend on two clients' data, which no clipping covers (docs/privacy.md, section 5).
"""

import logging
from collections.abc import Callable

import numpy as np
import torch

from client.training import Trainer, pick_device, probe_device
from fedmf.errors import SettingError
from fedmf.updates.vectors import Vector

log = logging.getLogger(__name__)


class Resident:
    """A trainer, made by `make` at the first turn, and anew after a turn that raised or changed the model itself.

    `is_lost` after a turn that left the device without an answer: a failed assertion on a CUDA device ends every
    later operation of this process on it, a new trainer's too. Only another process can use the device again.
    """

    def __init__(self, make: Callable[[], Trainer]) -> None:
        self._make = make
        self._trainer: Trainer | None = None
        self._device: torch.device | None = None  # of the last trainer
        self._has_warned = False
        self.is_lost = False

    def train(
        self,
        start: Vector,
        x: np.ndarray,
        y: np.ndarray,
        *,
        order: np.random.Generator,
        fixed_digest: str = "",
    ) -> tuple[Vector, Vector | None]:
        """Return what one client trained to, and what to subtract from it to have its update, None for nothing.

        Where the trainer has an `update` of its own, that is the first. Raises what training raised, once the device is tried.
        `fixed_digest` is that of what does not train of the model that `start` belongs to; `SettingError` where the
        trainer's own is another.
        """
        trainer, self._trainer = self._trainer, None  # kept only where the turn ends well
        try:
            # Made inside: an assertion that failed on a device may be said only when the next trainer is put there.
            trainer = trainer or self._make()
            self._device = trainer.device
            if fixed_digest and trainer.fixed_digest != fixed_digest:
                raise SettingError(
                    "what does not train of this model (frozen parameters and buffers) differs from the server's: the "
                    "file that model.start names, or the code of the model, is another one here."
                )
            is_ours = getattr(type(trainer), "update", None) is Trainer.update
            trained = (trainer.train if is_ours else trainer.update)(start, x, y, order=order)
        except (Exception, SystemExit):
            self.is_lost = not _answers(self._device)
            raise
        if trainer.is_as_made():
            self._trainer = trainer
        elif not self._has_warned:
            log.warning("training changes the model beyond its parameters; it is made anew for each client")
            self._has_warned = True
        return trained, start if is_ours else None


def _answers(device: torch.device | None) -> bool:
    """Return whether a tiny operation works on `device`; before any trainer was made, on the one it would be given."""
    try:
        probe_device(device or pick_device("auto"))
    except Exception:
        log.exception("the device does not answer any more; this process cannot use it again")
        return False
    return True
