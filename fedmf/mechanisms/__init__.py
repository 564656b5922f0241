"""What the server adds: every factorization of the papers behind one value and one stream interface.

>>> from fedmf.mechanisms import design, prefix_sum
>>> mechanism = design("optimal", prefix_sum(64))
>>> mechanism.stream.buffers, round(mechanism.root_loss, 3)
(3, 16.799)
"""

from fedmf.mechanisms.bounds import lower_bound, relative_gap
from fedmf.mechanisms.factorization import Factorization
from fedmf.mechanisms.families.custom import noising_family, strategy_family
from fedmf.mechanisms.families.protocol import Family
from fedmf.mechanisms.family import FAMILIES, design
from fedmf.mechanisms.fitted import Fitted
from fedmf.mechanisms.streams.protocol import NoiseStream, StreamState
from fedmf.mechanisms.workload import Workload, momentum, prefix_sum

__all__ = [
    "FAMILIES",
    "Factorization",
    "Family",
    "Fitted",
    "NoiseStream",
    "StreamState",
    "Workload",
    "design",
    "lower_bound",
    "momentum",
    "noising_family",
    "prefix_sum",
    "relative_gap",
    "strategy_family",
]
