"""Honaker's estimator from below: the same tree, every node estimated from its own subtree, online.

The best weight of a node's own measurement is 1 / (2 - 2^-h), which is then also its variance. This is
DP-FTRL of Kairouz et al. (ICML 2021) and the "Honaker" column of Denisov et al. (NeurIPS 2022), Table 2;
their Appendix C. Reported as published: the reduction of its sensitivity that an LQ factorization of B would
allow is not used.
"""

import numpy as np

from fedmf.mechanisms.families.protocol import Family
from fedmf.mechanisms.fitted import Fitted
from fedmf.mechanisms.streams import tree
from fedmf.mechanisms.streams.tree import TreeStream
from fedmf.mechanisms.workload import Workload


def fit(workload: Workload) -> Fitted:
    """Return the weights 1 / (2 - 2^-h), the sensitivity and the per-round error."""
    heights = np.arange(tree.levels(workload.rounds))
    return tree.rounded_with_cost(1 / (2 - 2.0**-heights), workload)


HONAKER_ONLINE = Family("honaker_online", fit, TreeStream)
