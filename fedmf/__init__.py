"""Federated learning under a streaming matrix mechanism: updates, noise, and what both cost in privacy.

>>> from fedmf import Participation
>>> Participation(clients=100, cohort_size=10, rounds_per_epoch=10, epochs=2).rounds
20

A name is imported when it is first used. The parts: `fedmf.updates` (what a client sends), `fedmf.mechanisms` (what
the server adds), `fedmf.accounting` (what it costs), `fedmf.counting` (private running sums without any model),
`fedmf.audit` (what releases of any such mechanism give away).
"""

from typing import TYPE_CHECKING

from fedmf.lazy import lazily

if TYPE_CHECKING:
    from fedmf.accounting import EpochEvent, Ledger, PrivacySpent, calibrate_noise_multiplier, privacy_spent
    from fedmf.choices import ACCOUNTANTS, ADJACENCIES, ROTATIONS, VALUE_TYPES
    from fedmf.conduct import Conduct, write_statement
    from fedmf.counting import continual_counter, online_learner
    from fedmf.errors import (
        DataError,
        DivergedError,
        FedmfError,
        NotCoveredError,
        ParticipationError,
        PrivacyBudgetExhausted,
        ReleaseOrderError,
        RunDirectoryError,
        RunStoppedError,
        SettingError,
    )
    from fedmf.mechanisms import (
        Factorization,
        RunFactorization,
        Workload,
        design,
        design_run,
        momentum,
        of_run,
        prefix_sum,
    )
    from fedmf.outlook import misgivings
    from fedmf.participation import Participation, rounds_that_fit
    from fedmf.plan import Plan, PrivacyTarget, make_plan
    from fedmf.randomness import PublicSeed, SecretKey
    from fedmf.statement import Statement
    from fedmf.updates.client_plan import ClientPlan, make_client_plan
    from fedmf.updates.compression import Compression, make_bounds
    from fedmf.updates.vectors import Layout
    from fedmf.updates.wire import Bounds
    from fedmf.version import __version__
else:
    __getattr__ = lazily(
        __name__,
        {
            "fedmf.accounting": [
                "EpochEvent",
                "Ledger",
                "PrivacySpent",
                "calibrate_noise_multiplier",
                "privacy_spent",
            ],
            "fedmf.choices": ["ACCOUNTANTS", "ADJACENCIES", "ROTATIONS", "VALUE_TYPES"],
            "fedmf.conduct": ["Conduct", "write_statement"],
            "fedmf.counting": ["continual_counter", "online_learner"],
            "fedmf.errors": [
                "DataError",
                "DivergedError",
                "FedmfError",
                "NotCoveredError",
                "ParticipationError",
                "PrivacyBudgetExhausted",
                "ReleaseOrderError",
                "RunDirectoryError",
                "RunStoppedError",
                "SettingError",
            ],
            "fedmf.mechanisms": [
                "Factorization",
                "RunFactorization",
                "Workload",
                "design",
                "design_run",
                "momentum",
                "of_run",
                "prefix_sum",
            ],
            "fedmf.outlook": ["misgivings"],
            "fedmf.participation": ["Participation", "rounds_that_fit"],
            "fedmf.plan": ["Plan", "PrivacyTarget", "make_plan"],
            "fedmf.randomness": ["PublicSeed", "SecretKey"],
            "fedmf.statement": ["Statement"],
            "fedmf.updates.client_plan": ["ClientPlan", "make_client_plan"],
            "fedmf.updates.compression": ["Compression", "make_bounds"],
            "fedmf.updates.vectors": ["Layout"],
            "fedmf.updates.wire": ["Bounds"],
            "fedmf.version": ["__version__"],
        },
    )

__all__ = [
    "ACCOUNTANTS",
    "ADJACENCIES",
    "ROTATIONS",
    "VALUE_TYPES",
    "Bounds",
    "ClientPlan",
    "Compression",
    "Conduct",
    "DataError",
    "DivergedError",
    "EpochEvent",
    "Factorization",
    "FedmfError",
    "Layout",
    "Ledger",
    "NotCoveredError",
    "Participation",
    "ParticipationError",
    "Plan",
    "PrivacyBudgetExhausted",
    "PrivacySpent",
    "PrivacyTarget",
    "PublicSeed",
    "ReleaseOrderError",
    "RunDirectoryError",
    "RunFactorization",
    "RunStoppedError",
    "SecretKey",
    "SettingError",
    "Statement",
    "Workload",
    "__version__",
    "calibrate_noise_multiplier",
    "continual_counter",
    "design",
    "design_run",
    "make_bounds",
    "make_client_plan",
    "make_plan",
    "misgivings",
    "momentum",
    "of_run",
    "online_learner",
    "prefix_sum",
    "privacy_spent",
    "rounds_that_fit",
    "write_statement",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
