"""Small plans for tests."""

import math

import numpy as np

from fedmf.accounting import EpochEvent, Ledger
from fedmf.mechanisms import design_run, of_run
from fedmf.mechanisms.schedules import rates
from fedmf.plan import Compression, Participation, Plan, PrivacyTarget, make_bounds, make_plan
from fedmf.randomness import PublicSeed, SecretKey
from fedmf.statement import Conduct, Statement, write_statement

KEY = SecretKey.reproducible(11)


def small_plan(
    *,
    dimension: int = 50,
    clients: int = 12,
    cohort_size: int = 3,
    rounds_per_epoch: int = 4,
    epochs: int = 2,
    keep_probability: float = 0.5,
    rotation: str = "hadamard",
    value_type: str = "float32",
    noise_multiplier: float | None = 1.0,
    epsilon: float | None = None,
    delta: float = 1e-5,
    adjacency: str = "zero_out",
    accountant: str = "rdp",
    max_epsilon: float | None = None,
    geometry: str = "l2",
    l2_norm: float | None = 1.0,
    linf_norm: float | None = None,
    family: str = "optimal",
    momentum: float = 0.0,
    schedule: str = "constant",
) -> Plan:
    """Return a plan; everything has a default."""
    compression = Compression(keep_probability, rotation, value_type)
    return make_plan(
        dimension=dimension,
        participation=Participation(clients, cohort_size, rounds_per_epoch, epochs),
        compression=compression,
        bounds=make_bounds(
            l2_norm=l2_norm,
            linf_norm=linf_norm,
            dimension=dimension,
            cohort_size=cohort_size,
            compression=compression,
        ),
        privacy=PrivacyTarget(
            delta=delta,
            noise_multiplier=noise_multiplier,
            epsilon=epsilon,
            adjacency=adjacency,
            accountant=accountant,
            max_epsilon=max_epsilon,
            geometry=geometry,
        ),
        factorization=design_run(
            family, of_run(rounds_per_epoch, epochs, momentum, rates(schedule, rounds_per_epoch * epochs))
        ),
        seed=PublicSeed(5),
    )


def stated(plan: Plan, epochs: int = 2, **conduct: object) -> Statement:
    """Return the statement of a run that started `epochs` epochs of the plan, with secret keys."""
    return write_statement(
        plan, Ledger((plan.epoch_event,) * epochs), Conduct(**{"reproducible": False, **conduct})
    )


def random_vector(dimension: int, norm: float, seed: int = 0) -> np.ndarray:
    """Return a random float32 vector of Euclidean length `norm`."""
    vector = np.random.default_rng(seed).normal(size=dimension)
    return (vector * norm / np.linalg.norm(vector)).astype(np.float32)


def linf_event(*, noise_over_linf: float, keep_probability: float, coordinates: int) -> EpochEvent:
    """One epoch of L_inf-CSGM: all D `coordinates` at the bound, noise of sigma = `noise_over_linf` kappa_inf."""
    root = math.sqrt(coordinates)
    return EpochEvent(noise_over_linf / root, keep_probability, 1 / root)
