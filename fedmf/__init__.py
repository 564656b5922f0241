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

if TYPE_CHECKING:  # the public names
    from fedmf.accounting import (
        EpochEvent as EpochEvent,
        Ledger as Ledger,
        PrivacySpent as PrivacySpent,
        calibrate_noise_multiplier as calibrate_noise_multiplier,
        privacy_spent as privacy_spent,
    )
    from fedmf.counting import continual_counter as continual_counter, online_learner as online_learner
    from fedmf.errors import (
        DataError as DataError,
        DivergedError as DivergedError,
        FedmfError as FedmfError,
        NotCoveredError as NotCoveredError,
        ParticipationError as ParticipationError,
        PrivacyBudgetExhausted as PrivacyBudgetExhausted,
        ReleaseOrderError as ReleaseOrderError,
        RunDirectoryError as RunDirectoryError,
        RunStoppedError as RunStoppedError,
        SettingError as SettingError,
    )
    from fedmf.mechanisms import (
        Factorization as Factorization,
        RunFactorization as RunFactorization,
        Workload as Workload,
        design as design,
        design_run as design_run,
        momentum as momentum,
        of_run as of_run,
        prefix_sum as prefix_sum,
    )
    from fedmf.outlook import misgivings as misgivings
    from fedmf.participation import Participation as Participation, rounds_that_fit as rounds_that_fit
    from fedmf.plan import Plan as Plan, PrivacyTarget as PrivacyTarget, make_plan as make_plan
    from fedmf.randomness import PublicSeed as PublicSeed, SecretKey as SecretKey
    from fedmf.setting import (
        ACCOUNTANTS as ACCOUNTANTS,
        ADJACENCIES as ADJACENCIES,
        ROTATIONS as ROTATIONS,
        VALUE_TYPES as VALUE_TYPES,
    )
    from fedmf.statement import Conduct as Conduct, Statement as Statement, write_statement as write_statement
    from fedmf.updates.client_plan import (
        ClientPlan as ClientPlan,
        Compression as Compression,
        make_bounds as make_bounds,
        make_client_plan as make_client_plan,
    )
    from fedmf.updates.vectors import Layout as Layout
    from fedmf.updates.wire import Bounds as Bounds
    from fedmf.version import __version__ as __version__
else:
    __getattr__, __dir__, __all__ = lazily(__name__, __file__)
