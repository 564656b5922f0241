"""What one client sends in coupled runs, and in which rounds.

Its vectors: ten times over the L2 bound, over the L-infinity bound, over both, not finite, and exactly at both. `crossing`
sends each of them in every round of the run, and the one over both bounds from every client. Each epoch has its own signs,
and of a vector that fills few coordinates its own ones, so that what the server keeps of an epoch is not what the client sends
in the next.
"""

from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from client.data import Examples
from experiments.audit.pipeline import known
from experiments.audit.sabotage import ExamplesOf
from experiments.audit.scene import L2_NORM, Scene, cohorts, steps_of
from fedmf.plan import Plan
from fedmf.randomness import PublicSeed
from fedmf.updates.vectors import Vector

PAIRS = 5  # the fewest that send each kind of vector
FAR = 10.0  # times the bound
CANARIES = (
    "over both bounds",
    "over the L2 bound",
    "over the L-infinity bound",
    "at both bounds",
    "not finite",
)


def crossing(plan: Plan) -> list[tuple[str, int]]:
    """Return who sends what in each pair, every kind of vector from every client.

    The first `PAIRS` send each kind once, in as many rounds as can be; the first `needed` send each kind in every round,
    and what is over both bounds from every client.
    """
    firsts = covering(plan, len(CANARIES))
    everyone = range(plan.participation.clients)
    queues: list[list[tuple[str, int]]] = []
    rest: list[tuple[str, int]] = []
    for canary, first in zip(CANARIES, firsts, strict=True):
        chosen = covering(plan, None, first)
        others = [client for client in everyone if client not in chosen]
        if canary == CANARIES[0]:
            chosen, others = chosen + others, []
        queues.append([(canary, client) for client in chosen])
        rest += [(canary, client) for client in others]
    turns = [turn for row in zip_longest(*queues) for turn in row if turn is not None]
    return turns + rest


def needed(plan: Plan) -> int:
    """Return after how many pairs of `crossing` each kind was sent in every round, and over both bounds by everyone."""
    firsts = covering(plan, len(CANARIES))
    return plan.participation.clients + sum(len(covering(plan, None, first)) for first in firsts[1:])


def covering(plan: Plan, count: int | None, first: int | None = None) -> list[int]:
    """Return `count` clients such that as many rounds as can be are the own round of the first of them.

    Each next one has the most rounds of the run that none before it has had; once all are had, it begins anew, or (None)
    ends. `first` is a client to begin with.
    """
    steps = {client: set(enumerate(steps_of(plan, client))) for client in range(plan.participation.clients)}
    missing: set[tuple[int, int | None]] = set().union(*steps.values())
    chosen: list[int] = []
    while missing if count is None else len(chosen) < count:
        missing = missing or set().union(*steps.values())
        best = max(steps, key=lambda client: (len(steps[client] & missing), client not in chosen))
        best = best if chosen or first is None else first
        chosen.append(best)
        missing = missing - steps[best]
    return chosen


def holdings(scene: Scene, plan: Plan, client: int, canary: str, *, present: bool) -> ExamplesOf:
    """Return what everyone holds: the client its vector of the epoch, or zeros; its companions it, others their own."""
    companions = {other for cohort in cohorts(plan) if client in cohort for other in cohort[::2]} - {client}
    rng = PublicSeed(0).generator("bystanders", scene.name)
    others = rng.normal(0, 2 * L2_NORM / plan.dimension**0.5, (plan.participation.clients, plan.dimension))
    vectors = dict(enumerate(others.astype(np.float32)))
    of_epoch = [canary_vector(scene, plan, canary, epoch) for epoch in range(plan.participation.epochs)]
    held = of_epoch if present else [np.zeros_like(vector) for vector in of_epoch]

    def examples_of(who: int, number: int) -> Examples:
        epoch = (number - 1) // plan.participation.rounds_per_epoch
        if who == client:
            return known(held[epoch])
        return known(of_epoch[epoch] if who in companions else vectors[who])

    return examples_of


def signs_of(scene: Scene, epoch: int) -> npt.NDArray[np.floating]:
    """Return the signs (d,) of the vectors of an epoch (0-based)."""
    return PublicSeed(0).signs(
        scene.dimension, f"canary {scene.name}" + (f", epoch {epoch}" if epoch else "")
    )


def canary_vector(scene: Scene, plan: Plan, canary: str, epoch: int = 0) -> Vector:
    """Return what the client would send in an epoch: (d,) float32, made in sent coordinates where those are as many."""
    bounds = plan.bounds
    assert bounds.l2_norm is not None
    assert bounds.linf_norm is not None
    size = plan.dimension
    if canary == "over both bounds":
        sent = FAR * max(bounds.linf_norm, bounds.l2_norm / size**0.5) * np.ones(size)
    elif canary == "over the L2 bound":
        sent = FAR * bounds.l2_norm / size**0.5 * np.ones(size)
    elif canary == "over the L-infinity bound":
        filled = max(1, int((bounds.l2_norm / (FAR * bounds.linf_norm)) ** 2))
        sent = np.zeros(size)
        sent[:filled] = FAR * bounds.linf_norm
        sent = np.roll(sent, epoch * filled)  # of a single coordinate another sign is none, half of the time
    else:
        filled = min(size, max(1, round((bounds.l2_norm / bounds.linf_norm) ** 2)))
        sent = np.zeros(size)
        sent[:filled] = min(bounds.linf_norm, bounds.l2_norm / filled**0.5)
    sent = sent * signs_of(scene, epoch)
    vector = plan.rotation.unrotate(sent) if scene.keeps_all else sent
    if canary == "not finite":
        vector = vector.copy()
        vector[[0, -1]] = np.nan, np.inf
    return np.asarray(vector, np.float32)
