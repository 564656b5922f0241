"""What the server adds: every factorization of the papers behind one value and one stream interface.

>>> from fedmf.mechanisms import design, prefix_sum
>>> mechanism = design("optimal", prefix_sum(64))
>>> mechanism.stream.buffers, round(mechanism.root_loss, 3)
(3, 16.799)
"""

from fedmf.mechanisms.factorization import Factorization
from fedmf.mechanisms.family import FAMILIES, design
from fedmf.mechanisms.streams.protocol import NoiseStream, StreamState
from fedmf.mechanisms.workload import Workload, momentum, prefix_sum

__all__ = [
    "FAMILIES",
    "Factorization",
    "NoiseStream",
    "StreamState",
    "Workload",
    "design",
    "momentum",
    "prefix_sum",
]
