"""The Flower ClientApp: unpack the tasks, train, privatize, pack each client's kept values.

Any exception in a client's turn becomes a zero update, and so does an update that is not finite. Both are logged on this
machine only, by `on_failure`: otherwise one client's data would decide what the server releases, and zero-out privacy
would be lost with certainty (docs/privacy.md). For the same reason it may not silence the clients after
it: see `Resident`. What fails before any client's data are read is no client's turn: an app that is made `at_once` raises it.

What one client's data did to the model or to the device must not reach the next client either: its update would then
depend on two clients' data, which no clipping covers.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from client.data import Examples
from client.privatize import Kept, privatize, privatize_there
from client.rehearsal import global_generators_kept
from client.training import Trainer, pick_device
from fedmf.errors import DeviceLostError, DivergedError, SettingError
from fedmf.randomness import SecretKey
from fedmf.updates import wire
from fedmf.updates.client_plan import ClientPlan
from fedmf.updates.vectors import Vector
from fedmf.updates.wire import Turn, Values, with_tag

log = logging.getLogger(__name__)

NOT_FINITE = "training gave an update that is not finite; a lower learning_rate of the clients may help."

# Called with a client whose update is zero because it could not train, and why. What it is told depends on private
# data without any noise: it stays on this machine, and no statement covers anything that is done with it.
OnFailure = Callable[[str, BaseException], None]


@dataclass(frozen=True)
class Observed:
    """What no noise covers of a client's turn: the `norm` of its scaled update before clipping, and the `loss` of the model it was sent."""

    norm: float
    loss: float


# Called after each turn, in simulations with unprotected metrics alone.
Observe = Callable[[Observed], None]


def log_failure(client: str, error: BaseException) -> None:
    """Log why a client takes part with a zero update, with the traceback."""
    log.error("client %s could not train; it takes part with a zero update", client, exc_info=error)


@dataclass(frozen=True)
class Task:
    """What one client is asked: whose turn it is in which round, and the key of its mask."""

    turn: Turn
    mask_key: SecretKey


@dataclass(frozen=True)
class Sent:
    """What all clients of a message start from, `model` (d,) float32, and scale their updates by, if by anything.

    That is (d,) or (1,) float32. `fixed_digest` is that of what does not train of the server's model, "" where all of it does.
    """

    model: Vector
    scale: Vector | None = None
    fixed_digest: str = ""
    _copies: dict[torch.device, tuple[Tensor, Tensor | None]] = field(default_factory=dict, repr=False)

    def on(self, device: torch.device) -> tuple[Tensor, Tensor | None]:
        """Return model and scale on `device`, copied there once for all clients of the message."""
        if device not in self._copies:
            scale = None if self.scale is None else torch.tensor(self.scale, device=device)
            self._copies[device] = torch.tensor(self.model, device=device), scale
        return self._copies[device]


def has_own_memory(device: torch.device) -> bool:
    """Return whether what is on `device` has to be copied to be on the host."""
    return device.type != "cpu"


class Resident:
    """A trainer made by `make` at the first turn, and again after one that raised, and what privatizes its updates by `plan`.

    On a device with memory of its own updates are privatized there: of a client, its kept values alone come back.

    `is_lost` after a turn that left the device without an answer: a failed assertion on a CUDA device ends every later
    operation of this process on it, a new trainer's too. Only another process can use the device again: `restore` says so.

    Making a trainer reads no client's data. What it raises in `begin` is therefore raised: a run that ends at it states
    nothing about any client. `restore` takes it for a lost device: it is due to this process or to the clients that it ran.
    """

    def __init__(self, make: Callable[[], Trainer], plan: ClientPlan, observe: Observe | None = None) -> None:
        self._make, self._plan, self._observe = make, plan, observe
        self._trainer: Trainer | None = None
        self._device: torch.device | None = None  # of the last trainer, None before any was made
        self.is_lost = False

    def begin(self) -> Trainer:
        """Make the trainer before any turn, and return it; raises what making it raises."""
        self._trainer = self._make()
        self._device = self._trainer.device
        return self._trainer

    def restore(self) -> None:
        """Make the trainer again where the last turn has spoilt it, before the next client's data are read.

        Raises `DeviceLostError` where the device is lost, or the trainer cannot be made: a client that is not asked yet is not
        at fault, a new process may still have room.
        """
        if self._trainer is None and self._device is not None and not self.is_lost:
            try:
                self.begin()
            except (Exception, SystemExit):
                log.exception("the trainer cannot be made again; this process cannot run another client")
                self.is_lost = True
        if self.is_lost:
            raise DeviceLostError(
                "the device does not answer this process any more, or has no room; end this process and ask a new one."
            )

    def run(
        self,
        sent: Sent,
        examples: Examples,
        order: np.random.Generator,
        mask_key: SecretKey,
    ) -> Kept:
        """Train on one client's examples and privatize the update.

        What the turn raises is raised once the device was tried; `SettingError` where what does not train of the model is
        another than the server's.
        """
        try:
            # Made inside: an assertion that failed on a device may be raised only when the next trainer is put there.
            trainer, self._trainer = self._trainer or self.begin(), None  # kept only where the turn ends well
            if sent.fixed_digest and trainer.fixed_digest != sent.fixed_digest:
                raise SettingError(
                    "what does not train of this model (frozen parameters and buffers) differs from the server's: the "
                    "file that model.start names, or the code of the model, is another one here."
                )
            start, scale = sent.on(trainer.device)
            trained = trainer.train(start, examples.x, examples.y, order=order)
            if trained.shape != start.shape:
                raise SettingError(
                    f"training gave an update of shape {tuple(trained.shape)}; it must be {tuple(start.shape)}."
                )
            if has_own_memory(trainer.device):
                kept = privatize_there(trained, self._plan, mask_key, start=start, scale=scale)
            else:  # in numpy, on the same memory
                kept = privatize(trained.numpy(), self._plan, mask_key, start=sent.model, scale=sent.scale)
            if self._observe is not None:
                with suppress(Exception, SystemExit), global_generators_kept():
                    update = trained - start if scale is None else (trained - start) * scale
                    # Of copies: a custom model may write into what it is given.
                    loss = trainer.score(sent.model, Examples(examples.x.copy(), examples.y.copy())).loss
                    self._observe(Observed(float(update.double().norm()), loss))
        except (Exception, SystemExit):
            try:  # before any trainer was made, the device that it would be given
                torch.ones(1, device=self._device or pick_device("auto")).add_(1).item()
            except Exception:
                log.exception("the device does not answer any more; this process cannot use it again")
                self.is_lost = True
            raise
        self._trainer = trainer
        return kept


def make_client_app(
    examples_of: Callable[[str, Context], Examples],
    make_trainer: Callable[[], Trainer],
    plan: ClientPlan,
    *,
    on_failure: OnFailure = log_failure,
    at_once: bool = False,
    observe: Observe | None = None,
) -> ClientApp:
    """Return the ClientApp of clients whose data `examples_of(client, context)` gives.

    `make_trainer` is called at the first task and again after an error in a turn; what it returned stays resident
    between. With `at_once` it is called here, and what it raises is raised (a device without room, say): no client's
    data have been read, so that the run may be stopped. Otherwise it counts as an error of the client's turn.

    Where a client's turn leaves the device unusable to this process (a failed assertion on a CUDA device), its update is
    zero, and `DeviceLostError` is raised where another client is asked for, as where no trainer can be made after it: the
    caller should ask another process the whole message (`experiments.engines.processes.Pool` does). `on_failure` is told of
    each client whose update is zero because it could not train. `observe`, for simulations alone, is told of every turn that
    could be scored.
    """
    app = ClientApp()
    resident = Resident(make_trainer, plan, observe)
    if at_once:
        resident.begin()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        tasks, sent = unpack(message)
        values = [run_client(resident, examples_of, sent, task, context, plan, on_failure) for task in tasks]
        return pack(values, message)

    return app


def unpack(message: Message) -> tuple[list[Task], Sent]:
    """Return each client's task, and what all clients of the message start from."""
    record: Any = message.content.config_records[wire.TASK]
    round_of_run = message.metadata.run_id, int(record[wire.EPOCH]), int(record[wire.STEP])
    asked = zip(record[wire.CLIENT], record[wire.MASK_KEY], strict=True)
    tasks = [Task(Turn(*round_of_run, client), SecretKey(key)) for client, key in asked]
    arrays = message.content.array_records[wire.MODEL]
    scale = wire.to_vector(arrays[wire.SCALE].data) if wire.SCALE in arrays else None
    return tasks, Sent(wire.to_vector(arrays[wire.VECTOR].data), scale, str(record.get(wire.FIXED, "")))


def part_of(message: Message, tasks: Sequence[Task]) -> Message:
    """Return `message` with these of its tasks alone, under its id."""
    record = ConfigRecord(
        {
            **message.content.config_records[wire.TASK],
            wire.CLIENT: [task.turn.client for task in tasks],
            wire.MASK_KEY: [task.mask_key.reveal() for task in tasks],
        }
    )
    part = copy(message)
    part.content = RecordDict({wire.MODEL: message.content.array_records[wire.MODEL], wire.TASK: record})
    return part


def zeros(task: Task, plan: ClientPlan) -> bytes:
    """Return what leaves a client that could not train: the zero update, under its own mask and tag."""
    kept = privatize(np.zeros(plan.rotation.dimension, np.float32), plan, task.mask_key)
    return sent_bytes(kept.values, task, is_short=False if plan.sends_bit else None)


def sent_bytes(values: Values, task: Task, *, is_short: bool | None = None) -> bytes:
    """Return a client's kept values as they travel: with its bit if it sends one, and the tag that binds them to its task."""
    bit = b"" if is_short is None else bytes([is_short])
    return with_tag(wire.to_bytes(values) + bit, task.mask_key, task.turn)


def pack(values: Sequence[bytes], message: Message) -> Message:
    """Return the reply that holds each client's `sent_bytes` on their own, in the order of the tasks, and nothing else.

    No loss, no norm, and no sum over clients: each vector stays under its own mask.
    """
    return Message(RecordDict({wire.UPDATE: ConfigRecord({wire.VALUES: list(values)})}), reply_to=message)


def run_client(
    resident: Resident,
    examples_of: Callable[[str, Context], Examples],
    sent: Sent,
    task: Task,
    context: Context,
    plan: ClientPlan,
    on_failure: OnFailure,
) -> bytes:
    """Return what leaves a client after its turn.

    Where it could not train, or what it trained could not be privatized, that of the zero update, as where training left
    the finite numbers: `on_failure` alone is told. Raises `DeviceLostError` before anything of the client is read.
    """
    resident.restore()
    try:
        examples = examples_of(task.turn.client, context)
        order = plan.seed.generator("data order", task.turn.client, task.turn.epoch)
        kept = resident.run(sent, examples, order, task.mask_key)
        sendable = sent_bytes(kept.values, task, is_short=kept.is_short if plan.sends_bit else None)
    except (Exception, SystemExit) as error:
        on_failure(task.turn.client, error)
        return zeros(task, plan)
    if not kept.is_finite:
        on_failure(task.turn.client, DivergedError(NOT_FINITE))
    return sendable
