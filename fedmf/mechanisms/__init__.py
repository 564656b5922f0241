"""What the server adds: every factorization of the papers behind one value and one stream interface.

>>> from fedmf.mechanisms import design, prefix_sum
>>> mechanism = design("optimal", prefix_sum(64))
>>> mechanism.stream.buffers, round(mechanism.root_loss, 3)
(3, 16.799)
"""

from fedmf.mechanisms.factorization import Factorization as Factorization
from fedmf.mechanisms.families import Family as Family
from fedmf.mechanisms.families.custom import (
    noising_family as noising_family,
    strategy_family as strategy_family,
)
from fedmf.mechanisms.family import (
    FAMILIES as FAMILIES,
    design as design,
    design_run as design_run,
    lower_bound as lower_bound,
    relative_gap as relative_gap,
    run_lower_bound as run_lower_bound,
)
from fedmf.mechanisms.run_factorization import (
    RunFactorization as RunFactorization,
    restarted as restarted,
)
from fedmf.mechanisms.streams.protocol import (
    NoiseStream as NoiseStream,
    StreamState as StreamState,
    check_stream as check_stream,
)
from fedmf.mechanisms.workload import (
    Workload as Workload,
    momentum as momentum,
    of_run as of_run,
    prefix_sum as prefix_sum,
)
