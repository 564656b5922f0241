"""The normalized square root: C = A^1/2 with every column divided by its norm, in O(log T) buffers.

The first column of A^1/2 is the longest, and the sensitivity is its norm alone; later columns may be as long at no cost
in privacy. With D the diagonal matrix of the column norms, C = A^1/2 D^-1 and B = A C^-1 = A D A^-1/2: the same noise
as the square root's, from fresh rows that are scaled by the norms. Streamed by the recurrence of `sqrt_blt`, of which only
the inputs change from round to round, so that the columns of what is deployed are unit to the rounding of its tables. Its
root loss is within about 1.5 % of the optimum for prefix sums, with no solver at all; with a learning-rate schedule C
stays as for a constant rate. Source: Henzinger, Kalinin, Upadhyay, "Normalized square root: sharper matrix factorization
bounds for differentially private continual counting" (2025): rms error at most 0.748 + log(T)/pi + o(1).

>>> from fedmf.mechanisms import design, prefix_sum, relative_gap
>>> [round(relative_gap(design(family, prefix_sum(64))), 3) for family in ("sqrt_toeplitz", "normalized_sqrt")]
[0.062, 0.013]
"""

import numpy as np

from fedmf.mechanisms.families import sqrt_blt
from fedmf.mechanisms.families.protocol import Family
from fedmf.mechanisms.fitted import Fitted
from fedmf.mechanisms.streams.recurrence import (
    RecurrentStream,
    StrategyForm,
    rounded_with_cost,
    tables_of,
    with_unit_columns,
)
from fedmf.mechanisms.workload import Workload


def fit(workload: Workload, buffers: int | None = None) -> Fitted:
    """Return the tables of every round, with `buffers` buffers (None: as few as `sqrt_blt` takes), and their cost.

    Raises `SettingError` for fewer than 1 or more than 24 buffers.
    """
    form = sqrt_blt.strategy_form(workload, buffers)
    repeated = StrategyForm(
        *(np.repeat(array, workload.rounds, axis=0) for array in (form.F, form.g, form.lam, form.c))
    )
    return rounded_with_cost(tables_of(with_unit_columns(repeated)), workload)


NORMALIZED_SQRT = Family("normalized_sqrt", fit, RecurrentStream, settings=("buffers",))
