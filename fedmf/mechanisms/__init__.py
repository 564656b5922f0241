"""What the server adds: every factorization of the papers behind one value and one stream interface.

>>> from fedmf.mechanisms import design, prefix_sum
>>> mechanism = design("optimal", prefix_sum(64))
>>> mechanism.stream.buffers, round(mechanism.root_loss, 3)
(3, 16.799)
"""

from fedmf.mechanisms.bounds import lower_bound, relative_gap, run_lower_bound
from fedmf.mechanisms.factorization import Factorization
from fedmf.mechanisms.families import Family
from fedmf.mechanisms.families.custom import noising_family, strategy_family
from fedmf.mechanisms.family import FAMILIES, design, design_run
from fedmf.mechanisms.run_factorization import RunFactorization, restarted
from fedmf.mechanisms.streams.protocol import NoiseStream, StreamState, check_stream
from fedmf.mechanisms.workload import Workload, momentum, of_run, prefix_sum

__all__ = [
    "FAMILIES",
    "Factorization",
    "Family",
    "NoiseStream",
    "RunFactorization",
    "StreamState",
    "Workload",
    "check_stream",
    "design",
    "design_run",
    "lower_bound",
    "momentum",
    "noising_family",
    "of_run",
    "prefix_sum",
    "relative_gap",
    "restarted",
    "run_lower_bound",
    "strategy_family",
]
