"""A pipeline for tests of what it does rather than of what it gives away: small, and one for each way a run can go.

All clients hold known vectors, so that what a release holds besides them is known too. `recovered` reads the noisy
sums off the models, with a bound on the error of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import scipy.linalg
from flwr.app import Error, Message
from torch import nn

from client.app import sent_bytes, unpack
from client.settings import TrainingSettings
from experiments.audit.pipeline import OPTIMIZER, Float64, Pipeline, Played
from experiments.audit.sabotage import NONE, ExamplesOf, Sabotage
from experiments.engines.grid import CLIENT_APP_RAISED, Worker, clients_of
from fedmf.audit.stated import Stated
from fedmf.mechanisms import design_run, of_run
from fedmf.plan import Compression, Participation, Plan, PrivacyTarget, make_bounds, make_plan
from fedmf.randomness import PublicSeed, SecretKey
from fedmf.updates import wire
from fedmf.updates.rotation import hadamard
from server.cohort import cohort_indices

L2_NORM = 1.0
INT8_LINF = (
    1024 / 127
) ** 2  # the int8 levels are then 2^-10 apart, so that digits are levels and nothing is rounded
_DENSE = 4096  # coordinates up to which a dense matrix turns them
_UNIT = 2.0**-24  # half the distance of float32 numbers, relative: a rounding errs by at most that
_SECOND_ORDER = 1 + 2.0**-10  # covers products of errors, which are below 2^-40 relative
_SMALLEST = 1e-38  # of products that underflow


@dataclass(frozen=True)
class Scene:
    """The settings of one pipeline.

    With `linf` the L-infinity bound is that of a vector of `linf` equal entries that fills the L2 bound, None: the
    default. `muted`: whether some clients' replies are errors and others' never come. `together`: how many
    clients share a message. `speaking`: whether clients of residual runs send vectors at and over their bounds, in place
    of zeros. `hostile`: whether the client that is looked at sends its vector as it is, and twice. `resume_after`: the round after which the process is killed and another goes on.
    """

    name: str
    mechanism: str = "optimal"
    keep_probability: float = 1.0
    rotation: str = "hadamard"
    value_type: str = "float32"
    dimension: int = 256
    linf: float | None = None
    cohort_size: int = 4
    rounds_per_epoch: int = 3
    epochs: int = 2
    noise_multiplier: float = 1.0
    together: int = 1
    muted: bool = False
    speaking: bool = False
    hostile: bool = False
    resume_after: int | None = None

    @property
    def keeps_all(self) -> bool:
        """Whether rotating loses no coordinate, so that what was sent follows from a sum."""
        return self.rotation == "identity" or self.dimension & (self.dimension - 1) == 0


@lru_cache(maxsize=32)
def plan_of(scene: Scene) -> Plan:
    """Return the plan of a scene; each client is heard once in each epoch."""
    compression = Compression(scene.keep_probability, scene.rotation, scene.value_type)
    n, rounds = scene.cohort_size, scene.rounds_per_epoch
    return make_plan(
        dimension=scene.dimension,
        participation=Participation(n * rounds, n, rounds, scene.epochs),
        compression=compression,
        bounds=make_bounds(
            l2_norm=L2_NORM,
            linf_norm=None if scene.linf is None else L2_NORM / scene.linf**0.5,
            dimension=scene.dimension,
            cohort_size=n,
            compression=compression,
        ),
        privacy=PrivacyTarget(delta=1e-5, noise_multiplier=scene.noise_multiplier),
        factorization=design_run(scene.mechanism, of_run(rounds, scene.epochs, OPTIMIZER.momentum)),
        seed=PublicSeed(0),
    )


@lru_cache(maxsize=32)
def stated_of(scene: Scene) -> Stated:
    """Return what a scene's plan states."""
    return Stated.of_plan(plan_of(scene))


def cohorts(plan: Plan) -> list[list[int]]:
    """Return the clients of every round of the run."""
    return [cohort_indices(plan, number + 1) for number in range(plan.participation.rounds)]


def steps_of(plan: Plan, client: int) -> tuple[int | None, ...]:
    """Return the step of each epoch in which a client takes part, None for none."""
    rounds = plan.participation.rounds_per_epoch
    found: list[int | None] = [None] * plan.participation.epochs
    for number, cohort in enumerate(cohorts(plan)):
        if client in cohort:
            found[number // rounds] = number % rounds
    return tuple(found)


class Muted:
    """A player with clients whose reply is an error (`failing`) or never comes (`silent`), in every round."""

    def __init__(self, player: Worker, failing: Sequence[int], silent: Sequence[int]) -> None:
        self._player = player
        self._failing = {str(client) for client in failing}
        self._silent = {str(client) for client in silent}
        self._errors: list[Message] = []

    def submit(self, messages: list[Message]) -> None:
        """Hand on the tasks of those that answer."""
        handed_on = []
        for message in messages:
            (client,) = clients_of(message)
            if client in self._failing:
                self._errors.append(Message(Error(CLIENT_APP_RAISED, "muted"), reply_to=message))
            elif client not in self._silent:
                handed_on.append(message)
        self._player.submit(handed_on)

    def collect(self, message_ids: list[str]) -> list[Message]:
        """Return the errors first, then what the player has."""
        errors, self._errors = self._errors, []
        return errors or self._player.collect(message_ids)


class Hostile:
    """A player with a client that sends its vector as it is, neither clipped nor looked at, and answers twice.

    Without masks, and one client to a message.
    """

    def __init__(self, player: Worker, plan: Plan, client: int, examples_of: ExamplesOf) -> None:
        self._player = player
        self._plan = plan
        self._client = client
        self._examples_of = examples_of
        self._asked: dict[str, Message] = {}

    def submit(self, messages: list[Message]) -> None:
        """Hand on the tasks, and remember which are the client's."""
        for message in messages:
            if clients_of(message) == [str(self._client)]:
                self._asked[message.metadata.message_id] = message
        self._player.submit(messages)

    def collect(self, message_ids: list[str]) -> list[Message]:
        """Return what the player has; of the client its own vector, twice."""
        replies = []
        for reply in self._player.collect(message_ids):
            message = self._asked.pop(reply.metadata.reply_to_message_id, None)
            if message is not None:
                vector = self._examples_of(self._client, int(message.metadata.group_id)).x[0]
                (task,), _ = unpack(message)
                with np.errstate(invalid="ignore"):
                    sent = sent_bytes(self._plan.rotation.rotate(vector), task)
                reply.content.config_records[wire.UPDATE][wire.VALUES] = [sent]
                replies.append(reply)
            replies.append(reply)
        return replies


def play(
    scene: Scene,
    secret: SecretKey,
    examples_of: ExamplesOf,
    sabotage: Sabotage = NONE,
    heard: int | None = None,
) -> Played:
    """Return one run of a scene; `heard` is a client that is never muted, and the hostile one where there is one."""
    plan = plan_of(scene)
    others = [[client for client in cohort if client != heard] for cohort in cohorts(plan)]
    failing, silent = (
        [cohort[place] for cohort in others[: scene.rounds_per_epoch] if scene.muted] for place in (0, 1)
    )
    player: Callable[[Worker], Worker] | None = None
    if scene.muted:
        player = partial(Muted, failing=failing, silent=silent)
    if scene.hostile and heard is not None:
        player = partial(Hostile, plan=plan, client=heard, examples_of=examples_of)
    pipeline = Pipeline(
        plan,
        _model(scene.dimension),
        TrainingSettings(0.1, device="cpu"),
        sabotage,
        tasks_per_message=scene.together,
        player=player,
        resume_after=scene.resume_after,
    )
    return pipeline.play(secret, examples_of)


def _model(dimension: int) -> nn.Module:
    """Return a model of so many parameters, all of them 0."""
    model = nn.Linear(dimension, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def recovered(plan: Plan, models: Float64) -> tuple[Float64, Float64]:
    """Return the noisy sums that models (E T + 1, d) tell, and a bound on the error of each, both (E, T, d).

    The product computes in float32, each operation with a relative error of at most u = 2^-24, its settings rounded to
    float32 first. With rate r, momentum b, velocity v, mean m and denominator q, to first order

        model = (old + r v)           errs by  u (|model| + 2 r |v|), hence what is read as v by that over r;
        v = b v_old + m               errs by  u (|v| + 2 b |v_old|);
        m = sum / q, sum in float32   err by   2 u |m| and u |sum|.
    """
    rate, momentum = OPTIMIZER.learning_rate, OPTIMIZER.momentum
    with np.errstate(invalid="ignore"):  # what is not finite stays so, and is found
        velocity = np.diff(models, axis=0) / rate
    error = _UNIT * (np.abs(models[1:]) / rate + 2 * np.abs(velocity))
    before, error_before = np.zeros_like(velocity), np.zeros_like(error)
    before[1:], error_before[1:] = velocity[:-1], error[:-1]
    mean = velocity - momentum * before
    error = error + momentum * error_before + _UNIT * (np.abs(velocity) + 2 * momentum * np.abs(before))
    error += 3 * _UNIT * np.abs(mean) + _SMALLEST
    shape = (plan.participation.epochs, plan.participation.rounds_per_epoch, -1)
    return plan.denominator * mean.reshape(shape), _SECOND_ORDER * plan.denominator * error.reshape(shape)


def to_sent(plan: Plan) -> Callable[[Float64], Float64]:
    """Return the map of a row (d,) to the coordinates that are sent, (D,), in float64.

    Up to D = 4096 with a Hadamard matrix of scipy's. A row that was cut down from D to d coordinates does not come back.
    """
    if plan.rotation.kind == "identity":
        return lambda row: row
    size, dimension = plan.rotation.padded, plan.dimension
    if size <= _DENSE:
        matrix = scipy.linalg.hadamard(size) / size**0.5
        turn: Callable[[Float64], Float64] = matrix.__matmul__
    else:
        turn = hadamard
    signs = np.zeros(size)
    signs[:dimension] = np.sign(plan.rotation.unrotate(turn(np.ones(size))))
    return lambda row: turn(signs * np.pad(row, (0, size - dimension)))
