"""The Flower strategy: it asks a cohort, adds what comes back, and releases the noisy model.

All arithmetic is elsewhere. It overrides `start` because Flower's own gathers all replies before it aggregates,
and can neither stop nor resume.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result, Strategy

from fedmf.errors import ParticipationError, PrivacyBudgetExhausted, ReleaseOrderError, RunStoppedError
from fedmf.plan import Plan
from fedmf.randomness import SecretKey
from fedmf.updates import wire
from fedmf.updates.wire import Turn, without_tags
from server.cohort import Heard, Population, ReplyPolicy
from server.exchange import exchange, model_record, payloads
from server.optimizer import Optimizer
from server.state import (
    FixedPoint,
    Release,
    Secrets,
    ServerState,
    apply_release,
    begin_epoch,
    check_one_scale,
    make_release,
    secrets_at,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Asked:
    """A message of the round under way, its place in the run, its clients and their mask keys."""

    message: Message
    epoch: int
    step: int
    clients: Sequence[str]
    mask_keys: Sequence[SecretKey] = field(repr=False)

    def values(self, reply: Message) -> list[bytes | None]:
        """Return the bytes of each client's values in `reply`; None for an error, what is malformed or of another task."""
        turns = [Turn(self.message.metadata.run_id, self.epoch, self.step, client) for client in self.clients]
        return without_tags(payloads(reply, len(turns)), self.mask_keys, turns)


class FedMF(Strategy):
    """Federated averaging under a streaming matrix mechanism with restart, over secretly masked updates.

    `commit` puts a release where it survives a crash, before any client or caller can see it (by default nowhere, for a run
    that need not survive this process). An `Exception` there leaves the round unreleased; after an interrupt there this
    strategy asks and releases no more. `state` is the only value that changes between rounds. The messages of the round
    under way are kept to match replies to clients. `fixed_digest` is `Trainer.fixed_digest` of a model that trains in part:
    a client whose own frozen part is another does not train. Raises `SettingError` for a reply policy that no cohort of the
    plan can meet, and for two things that scale the clients' updates.

    `on_release` are called in turn with the new state and its release, once it is committed. The state's noise stream is valid
    until the next round: continuing from a state kept longer is an error. `on_heard` is called with the number of a round, the
    clients asked and those who answered, once replies are in and before anything is released; an exception leaves the round
    unreleased. No privacy statement covers one that private data decide, `on_reply` (each client and what it sent, of any type
    and before any noise) or `on_sum` (the sum of a round's replies, (D,) float64 and rotated, before any noise).
    """

    def __init__(
        self,
        plan: Plan,
        optimizer: Optimizer,
        population: Population,
        state: ServerState,
        *,
        replies: ReplyPolicy | None = None,
        commit: Callable[[Release], None] = lambda release: None,
        on_release: Sequence[Callable[[ServerState, Release], None]] = (),
        on_reply: Callable[[str, object], None] | None = None,
        on_sum: Callable[[np.typing.NDArray[np.float64]], None] | None = None,
        on_heard: Callable[[int, Sequence[str], Sequence[str]], None] = lambda number, asked, answered: None,
        tasks_per_message: int = 1,
        fixed_digest: str = "",
    ) -> None:
        self.plan = plan
        self.optimizer = optimizer
        self.population = population
        self.state = state
        self._replies = replies or ReplyPolicy()
        self._replies.check_fits(plan.participation.cohort_size)
        check_one_scale(plan, optimizer)
        self._commit = commit
        self._on_release = tuple(on_release)
        self._on_reply, self._on_sum = on_reply, on_sum
        self._on_heard = on_heard
        self._tasks_per_message = tasks_per_message
        self._fixed_digest = fixed_digest
        self._asked: list[Asked] = []

    def summary(self) -> None:
        who = self.plan.participation
        log.info(
            "%d epochs of %d rounds, cohorts of %d of %d clients, %s noise, keep %g, noise multiplier %g",
            *(who.epochs, who.rounds_per_epoch, who.cohort_size, who.clients, self.plan.factorization.family),
            *(self.plan.compression.keep_probability, self.plan.noise_multiplier),
        )
        affordable = self.plan.affordable_epochs
        if affordable < who.epochs and not self.plan.factorization.is_restart_of_one:
            log.warning(
                "max_epsilon ends this run after %d of its %d epochs, and the noise is designed for all of them: the run "
                "is as private, but with epochs=%d it would have less noise in the model",
                *(affordable, who.epochs, affordable),
            )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the tasks of the round's cohort: the model, and for each client its own mask key.

        A message carries up to `tasks_per_message` clients of one node. Clients of disconnected nodes are not
        asked: they are silent. Raises `ReleaseOrderError` for a round that is not the next one: rounds are
        released in order, each once.
        """
        if server_round != self.state.round + 1:
            raise ReleaseOrderError(
                f"round {server_round} was asked for; the next one is {self.state.round + 1}."
            )
        epoch, step = self.state.position(self.plan)
        state, key = begin_epoch(self.plan, self.state), self._secrets.key
        places = self.population.cohort(self.plan, server_round, grid, key=key.derive("population"))
        if not places:
            raise RunStoppedError(f"no node is connected for round {server_round}; nothing was asked.")
        self.state, self._asked = state, []
        for node, clients in places.items():
            for start in range(0, len(clients), self._tasks_per_message):
                batch = clients[start : start + self._tasks_per_message]
                keys = [key.mask_key(client, step) for client in batch]
                task = ConfigRecord(
                    {
                        wire.EPOCH: epoch,
                        wire.STEP: step,
                        **({wire.FIXED: self._fixed_digest} if self._fixed_digest else {}),
                        wire.CLIENT: list(batch),
                        wire.MASK_KEY: [key.reveal() for key in keys],
                    }
                )
                content = RecordDict({wire.MODEL: arrays, wire.TASK: task})
                if question := self.population.question(batch):
                    content[wire.HELD] = ConfigRecord({**question})
                message = Message(content, node, MessageType.TRAIN, group_id=str(server_round))
                self._asked.append(Asked(message, epoch, step, batch, keys))
        return [asked.message for asked in self._asked]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add `replies` as they come, release the round, and return the new model.

        Returns (None, None), with nothing released and no client spent, when fewer than `min_replies` answered.
        """
        rotated_sum, answered, short = self._add(replies)
        self._on_heard(server_round, [client for asked in self._asked for client in asked.clients], answered)
        if len(answered) < self._replies.min_replies:
            return None, None
        if self._on_sum is not None:
            self._on_sum(rotated_sum)
        before, secrets = self.state, self._secrets
        # From here on no round can follow in this process, as after an interrupt: only the checkpoint tells what was released.
        self.state = replace(before, secrets=None)
        release, after = make_release(self.plan, before, rotated_sum, answered, short=short, donate=True)
        del rotated_sum  # as much memory as two models: the optimizer needs it next
        state = apply_release(self.plan, self.optimizer, before, release, after)
        try:
            self._commit(release)
        except Exception:
            # Not released. The noise stream moved on in place, so that its rows must be drawn again.
            secrets = replace(secrets, stream=None)
            self.state = replace(before, secrets=secrets_at(self.plan, secrets, before.round))
            raise
        self.state, self._asked = state, []
        for callback in self._on_release:
            callback(state, release)
        return model_record(state.model, state.scale), MetricRecord({"replies": len(answered)})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return no message: clients are never asked for metrics, which no noise would cover."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return None: there is nothing to aggregate."""

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the rounds that are left, at most `num_rounds`, each waiting up to `timeout` seconds for replies.

        The model comes from the state, so `initial_arrays` may be left out. An epoch that would exceed
        max_epsilon is not begun: the run ends there with the model so far (raises `PrivacyBudgetExhausted` if
        that is the first one). Returns the last model and `evaluate_fn`'s metrics.
        """
        result = Result()
        self.summary()
        last = self.plan.participation.rounds
        if num_rounds is not None:
            last = min(last, self.state.round + num_rounds)
        arrays = model_record(self.state.model, self.state.scale)
        while self.state.round < last:
            number = self.state.round + 1
            try:
                arrays, metrics = self._round(grid, arrays, train_config or ConfigRecord(), timeout)
            except PrivacyBudgetExhausted as stop:
                if self.state.round == 0:
                    raise
                log.warning("stopped after round %d with the model so far: %s", self.state.round, stop)
                self.state = replace(self.state, secrets=None)  # no further epoch: its key is of no use
                break
            result.train_metrics_clientapp[number] = metrics
            if evaluate_fn is not None and (scores := evaluate_fn(number, arrays)) is not None:
                result.evaluate_metrics_serverapp[number] = scores
        result.arrays = arrays
        return result

    def _round(
        self, grid: Grid, arrays: ArrayRecord, config: ConfigRecord, timeout: float
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Return the model after the next round, asked for until enough have answered.

        Every attempt is of the same round: the same masks, the same noise row, and nothing shown in between.
        Raises `RunStoppedError` after `max_attempts`. Resuming the run tries the round as often again; as nothing
        was released, that reveals nothing but silence.
        """
        number = self.state.round + 1
        for attempt in range(1, self._replies.max_attempts + 1):
            messages = list(self.configure_train(number, arrays, config, grid))
            released, metrics = self.aggregate_train(number, exchange(grid, messages, timeout=timeout))
            if released is not None and metrics is not None:
                return released, metrics
            log.warning(
                "round %d, attempt %d of %d: fewer than %d clients answered; nothing was released",
                number,
                attempt,
                self._replies.max_attempts,
                self._replies.min_replies,
            )
        raise RunStoppedError(
            f"round {number} had fewer than min_replies={self._replies.min_replies} replies in "
            f"{self._replies.max_attempts} attempts; the run stops with the model of round {number - 1}. When more "
            "clients are there, the run can be resumed from its checkpoint."
        )

    @property
    def _secrets(self) -> Secrets:
        if self.state.secrets is None:
            raise ReleaseOrderError(
                f"no round can follow round {self.state.round} in this process: the run is over, or the next round was cut off "
                "while it was released, and only the checkpoint tells whether it was. Resume the run from its checkpoint."
            )
        return self.state.secrets

    def _add(self, replies: Iterable[Message]) -> tuple[np.typing.NDArray[np.float64], list[str], int]:
        """Return the sum of the cohort's masked updates, (D,) float64, the clients who answered, and the sum of their bits.

        Each client's values are decoded and bounded on their own, whichever message they came in. Values without the
        tag of their own task are zeros, and what else is in a reply without any such tag is not looked at: it may come
        from another node than the one that was asked. Only one that says that its node does no work for the run, and
        nothing else, leaves its clients silent: who says so for another node does no more than who keeps its reply back.
        A node that has read another's task can tag values too (docs/deployment.md, "Trust").
        """
        plan, awaited = self.plan, {asked.message.metadata.message_id: asked for asked in self._asked}
        grid = FixedPoint.fit(plan.bounds.linf_norm, plan.participation.cohort_size)
        total = np.zeros(plan.rotation.padded, np.int64)
        answered: list[str] = []
        short = 0
        for reply in replies:
            if (asked := awaited.pop(reply.metadata.reply_to_message_id, None)) is None:
                continue  # not of this cohort and round, or a second reply
            values = asked.values(reply)
            is_theirs = any(data is not None for data in values)
            heard = self.population.heard(asked.clients, reply, is_theirs=is_theirs)
            if heard is Heard.SILENCE:
                continue  # its clients are neither heard nor spent
            if heard is Heard.ZEROS:
                values = [None] * len(values)
            for client, key, data in zip(asked.clients, asked.mask_keys, values, strict=True):
                if self._on_reply is not None:
                    self._on_reply(client, data)
                if plan.clipping is not None:
                    data, bit = wire.split_bit(data)
                    short += bit
                kept = wire.coordinates(key, plan.rotation.padded, plan.compression.keep_probability)
                grid.add(total, kept, wire.decode(data, plan.bounds, kept=len(kept)))
                answered.append(client)
        return grid.value(total, donate=True), answered, short


def make_server_app(
    make_strategy: Callable[[Context], FedMF],
    *,
    min_nodes: int = 1,
    node_timeout: float = 600,
    round_timeout: float = 3600,
) -> ServerApp:
    """Return the ServerApp that runs the strategy of `make_strategy` once `min_nodes` nodes are connected.

    Timeouts are in seconds: for nodes to appear, and for the replies of one round.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        deadline = time.monotonic() + node_timeout
        while (connected := len(list(grid.get_node_ids()))) < min_nodes:
            if time.monotonic() > deadline:
                raise ParticipationError(
                    f"{connected} nodes were connected after {node_timeout:g} seconds; {min_nodes} are needed."
                )
            time.sleep(0.1)
        make_strategy(context).start(grid, timeout=round_timeout)

    return app
