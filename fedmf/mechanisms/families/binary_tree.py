"""The binary tree mechanism: all dyadic nodes are measured, and a prefix sum adds up to log2 T of them.

As published (Dwork et al. 2010, Chan et al. 2011), nodes that no prefix uses count in the sensitivity. Other
workloads post-process the prefix sums: B = A S^-1 B_tree.
"""

import numpy as np

from fedmf.mechanisms.families.protocol import Family
from fedmf.mechanisms.fitted import Fitted
from fedmf.mechanisms.streams import tree
from fedmf.mechanisms.streams.tree import TreeStream
from fedmf.mechanisms.workload import Workload


def fit(workload: Workload) -> Fitted:
    """Return the weights 1 of each node's own measurement, the sensitivity and the per-round error."""
    return tree.rounded_with_cost(np.ones(tree.levels(workload.rounds)), workload)


BINARY_TREE = Family("binary_tree", fit, TreeStream)
