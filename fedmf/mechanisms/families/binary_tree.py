"""The binary tree mechanism: every node of the dyadic tree is measured,
a prefix sum adds up to log2 T of them.

As published (Dwork et al. 2010, Chan et al. 2011), nodes that no prefix uses count in the sensitivity. Other
workloads post-process the prefix sums: B = A S^-1 B_tree.
"""

import numpy as np

from fedmf.mechanisms.arrays import Arrays
from fedmf.mechanisms.streams import tree
from fedmf.mechanisms.streams.tree import TreeStream
from fedmf.mechanisms.workload import Workload


def fit(workload: Workload) -> Arrays:
    """Return the weights 1 of each node's own measurement, the sensitivity and the per-round error."""
    return tree.deployed(np.ones(tree.levels(workload.rounds)), workload)


def stream(workload: Workload, arrays: Arrays) -> TreeStream:
    """Return the stream, whose state is floor(log2 T) + 1 rows."""
    return TreeStream(workload.rounds, arrays["weights"])
