"""The figures of a run that goes on, as a table for Prometheus and as a word on its health.

Figures of rounds are those of metrics.jsonl, and come from its rows: cohort and replies by number, seconds, epsilon. Which
clients were silent, and when, no privacy statement covers, so that no figure has a client, and none counts the clients heard
before their round is released; who could not train is in no figure at all (docs/alerts.md).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from server.pulling import pulls_under_way


@dataclass(frozen=True)
class Figures:
    """What is known of a run; None: not yet, or nothing that this run has.

    Times with `clock` are seconds of a clock that never falls, the others are of the day. `nodes` are those that the clients of
    the round under way are behind, `silent` those from which no client was heard when they were last asked. `expected` are
    those of the list, whichever are in the epoch, `present` those of them that are connected, and `in_epoch` those that are in it.
    """

    run: str
    engine: str
    rounds_planned: int
    epochs_planned: int
    clients: int
    cohort_size: int
    epsilon_planned: float
    epsilon_limit: float | None
    delta: float
    is_private: bool
    session_started: float
    progress_clock: float
    rounds_released: int = 0
    epochs_begun: int = 0
    replies: int | None = None
    round_seconds: float | None = None
    last_round: float | None = None
    epsilon_spent: float = 0.0
    is_waiting: bool = False
    nodes: int | None = None
    connected: int | None = None
    silent: int | None = None
    expected: int | None = None
    present: int | None = None
    in_epoch: int | None = None


@dataclass(frozen=True)
class Gauge:
    """A figure as Prometheus sees it: its name, its unit, what it means, and its value; None leaves it out."""

    name: str
    unit: str
    meaning: str
    value: Callable[[Figures], float | None]


GAUGES = (
    Gauge(
        "fedmf_rounds_released",
        "rounds",
        "Rounds released since the run began, in all its sessions",
        lambda seen: seen.rounds_released,
    ),
    Gauge("fedmf_rounds_planned", "rounds", "Rounds of the whole run", lambda seen: seen.rounds_planned),
    Gauge(
        "fedmf_epochs_begun",
        "epochs",
        "Epochs that have begun, each of which counts whole",
        lambda seen: seen.epochs_begun,
    ),
    Gauge("fedmf_epochs_planned", "epochs", "Epochs of the whole run", lambda seen: seen.epochs_planned),
    Gauge("fedmf_clients", "clients", "Clients that the statement names", lambda seen: seen.clients),
    Gauge("fedmf_cohort_size", "clients", "Clients of a round, as planned", lambda seen: seen.cohort_size),
    Gauge(
        "fedmf_replies",
        "clients",
        "Clients heard in the last released round, as in metrics.jsonl",
        lambda seen: seen.replies,
    ),
    Gauge(
        "fedmf_round_seconds",
        "seconds",
        "Time of the last released round, as in metrics.jsonl",
        lambda seen: seen.round_seconds,
    ),
    Gauge(
        "fedmf_last_round_timestamp_seconds",
        "Unix time",
        "When the last round of this session was released",
        lambda seen: seen.last_round,
    ),
    Gauge(
        "fedmf_session_started_timestamp_seconds",
        "Unix time",
        "When this session began, or the run was resumed",
        lambda seen: seen.session_started,
    ),
    Gauge(
        "fedmf_epsilon_spent",
        "epsilon",
        "Epsilon of the epochs that have begun, +Inf without noise",
        lambda seen: seen.epsilon_spent,
    ),
    Gauge(
        "fedmf_epsilon_planned",
        "epsilon",
        "Epsilon of all planned epochs, +Inf without noise",
        lambda seen: seen.epsilon_planned,
    ),
    Gauge(
        "fedmf_epsilon_limit",
        "epsilon",
        "privacy.max_epsilon; left out without one",
        lambda seen: seen.epsilon_limit,
    ),
    Gauge("fedmf_delta", "probability", "Delta of every epsilon here", lambda seen: seen.delta),
    Gauge(
        "fedmf_private",
        "0 or 1",
        "1 where the statement calls the run private, 0 for a run without noise or with secrets from its seed",
        lambda seen: float(seen.is_private),
    ),
    Gauge(
        "fedmf_waiting_for_nodes",
        "0 or 1",
        "1 while a deployed run waits for enough clients, or for a node of its round",
        lambda seen: float(seen.is_waiting),
    ),
    Gauge(
        "fedmf_round_nodes",
        "nodes",
        "Nodes that the clients of the round under way are behind; of a deployed run",
        lambda seen: seen.nodes,
    ),
    Gauge(
        "fedmf_round_nodes_connected",
        "nodes",
        "Those of them that were connected when the round began; of a deployed run",
        lambda seen: seen.connected,
    ),
    Gauge(
        "fedmf_round_nodes_silent",
        "nodes",
        "Nodes from which no client was heard in the last round that asked any of theirs, connected or not; of a deployed run",
        lambda seen: seen.silent,
    ),
    Gauge(
        "fedmf_nodes_expected",
        "nodes",
        "Nodes of the list, in the epoch or not; without a list those of the epoch; of a deployed run",
        lambda seen: seen.expected,
    ),
    Gauge(
        "fedmf_nodes_connected",
        "nodes",
        "Those of the expected nodes that were connected when the round began; of a deployed run",
        lambda seen: seen.present,
    ),
    Gauge(
        "fedmf_nodes_in_epoch",
        "nodes",
        "Those of the expected nodes that are in the epoch under way, connected or not; of a deployed run",
        lambda seen: seen.in_epoch,
    ),
    Gauge(
        "fedmf_pulls_under_way",
        "nodes",
        "Requests for a reply that are under way, at most one a node: above 1 nodes announce replies and deliver them slowly; of "
        "a deployed run",
        lambda seen: None if seen.nodes is None else pulls_under_way(),
    ),
)
"""All figures with a number; beside them stands `fedmf_run_info`, whose labels are `INFO`."""

INFO = ("run", "engine", "version")


def table() -> str:
    """Return all metrics as a table of Markdown."""
    rows = [
        ("fedmf_run_info", "info", "1", f"Labels {', '.join(INFO)}; `run` is the name of the run's folder"),
        *((gauge.name, "gauge", gauge.unit, gauge.meaning) for gauge in GAUGES),
    ]
    lines = [
        ("Metric", "Type", "Unit", "Meaning"),
        ("---",) * 4,
        *((f"`{row[0]}`", *row[1:]) for row in rows),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def health(seen: Figures, within: float, now: float) -> tuple[bool, dict[str, Any]]:
    """Return whether a round, or the session, has ended or begun within the last `within` seconds, and what to say of it.

    `now` is of the clock of `Figures.progress_clock`.
    """
    since = now - seen.progress_clock
    is_well = since <= within
    return is_well, {
        "status": "ok" if is_well else "late",
        "run": seen.run,
        "waiting_for_nodes": seen.is_waiting,
        "rounds_released": seen.rounds_released,
        "rounds_planned": seen.rounds_planned,
        "seconds_since_last_round": round(since, 1),
        "late_after_seconds": within,
    }
