"""The tree of dyadic intervals over an epoch's rounds, and the stream of estimators that go up the tree.

A node of height h is a block of 2^h rounds that ends at a multiple of 2^h; only blocks that are complete
within the epoch exist, since no online estimator uses others. Round t completes the nodes of height 0 to k, k
the number of trailing zero bits of t + 1. Row order: by round, then by height. Estimates go up: est = w_h z +
(1 - w_h) (est of left child + est of right child), with w_h = 1 for the plain binary tree. A prefix sum is
the sum of the estimates at the bits of t + 1.

Sources: Dwork, Naor, Pitassi, Rothblum (STOC 2010); Chan, Shi, Song (2011); Honaker (2015), estimator from
below.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedmf.mechanisms.streams.protocol import ON_RELEASE, Draw, NoiseStream, blocks
from fedmf.mechanisms.streams.recurrence import output_errors
from fedmf.mechanisms.workload import Float64, Workload
from fedmf.normals import UNIT


def height(step: int) -> int:
    """Return the height of the highest node that round `step` (0-based) completes.

    >>> [height(step) for step in range(8)]
    [0, 1, 0, 2, 0, 1, 0, 3]
    """
    return ((step + 1) & -(step + 1)).bit_length() - 1


def nodes_before(step: int) -> int:
    """Return how many nodes are complete before round `step`: 2 step minus its number of one bits."""
    return 2 * step - step.bit_count()


def levels(rounds: int) -> int:
    """Return the number of heights, floor(log2 T) + 1: the most nodes that contain a round."""
    return rounds.bit_length()


def strategy(rounds: int) -> Float64:
    """Return the dense C, shape (m, T): row of a node is 1 on its rounds."""
    C = np.zeros((nodes_before(rounds), rounds))
    for step in range(rounds):
        for h in range(height(step) + 1):
            C[nodes_before(step) + h, step + 1 - 2**h : step + 1] = 1
    return C


@dataclass(frozen=True, eq=False)
class TreeStream(NoiseStream):
    """A noise stream from the weight of each node's own measurement, by height, (levels,) float32.

    The state holds, for every height, the estimate of the last node completed there. The row emitted is the change of the
    estimate of the prefix sum: the new node minus the lower ones that it replaces. A step completes several nodes, whose
    measurements enter the new node's estimate and no other row: one fresh row of the variance of their sum has the
    same law. So the rows emitted are L Z with L (T, T) lower triangular, and L L^T = A^-1 B B^T A^-T.
    """

    takes = "a weight for each height of the tree"

    def _fits(self) -> bool:
        return self.tables.shape == (levels(self.rounds),)

    @property
    def buffers(self) -> int:
        return len(self.tables)

    def own(self, step: int) -> float:
        """Return the standard deviation of what the measurements of a step add to its row."""
        return float(np.linalg.norm(self.maps(height(step))[1][1]))

    @cached_property
    def sensitivity(self) -> float:
        """The square root of floor(log2 T) + 1: as published, nodes that no estimate uses are counted."""
        return float(np.sqrt(levels(self.rounds)))

    def errors(self, workload: Workload) -> tuple[Float64, Float64]:
        return output_errors(self.buffers, self._step_maps, workload)

    def maps(self, top: int) -> tuple[Float64, Float64]:
        """Return what a step of height `top` makes of the buffers below it and of its nodes' measurements.

        Shapes (2, top) and (2, top + 1); the rows are the estimate of the new node and the noise row.
        """
        of_buffers, of_fresh = np.zeros((2, top)), np.zeros((2, top + 1))
        of_fresh[0, 0] = self.tables[0]  # the leaf: its own measurement
        for h in range(1, top + 1):
            share = 1 - float(self.tables[h])  # of the children: the left one is kept, the right one new
            of_fresh[0] *= share
            of_buffers[0] *= share
            of_fresh[0, h] = self.tables[h]
            of_buffers[0, h - 1] = share
        of_fresh[1] = of_fresh[0]  # the noise row: the new node minus the lower ones that it replaces
        of_buffers[1] = of_buffers[0] - 1
        return of_buffers, of_fresh

    def _step(self, step: int, fresh: Float64, buffers: Float64, mean: Float64, draw: Draw) -> None:
        top, own = height(step), self.own(step)
        of_buffers, _ = self.maps(top)
        for block in blocks(len(mean), top + 3):
            estimate, mean[block] = of_buffers @ buffers[:top, block]
            buffers[top, block] = estimate + own * fresh[block]

    def rounding(self) -> float:
        """Return the bound; see `NoiseStream.rounding`.

        No estimate has a variance above 1, and no map an entry above 1. An estimate is the sum of the rows emitted in its
        node, so that its error is at most that of all 2^h leaves below it; a row of height h divides by `own` what the
        estimates below it are off by, 2^h times the error of one at most.
        """
        heights = np.arange(self.buffers)
        counts = np.bincount([height(step) for step in range(self.rounds)], minlength=self.buffers)
        one = (heights.max() + 2 + ON_RELEASE) * (self.buffers + 1) * UNIT
        own = np.array([np.linalg.norm(self.maps(top)[1][1]) for top in heights.tolist()])
        carried = np.sqrt((counts * (2.0**heights / own) ** 2).sum())
        return float(one * (self.sensitivity * self.rounds + carried))

    def _step_maps(self, steps: range) -> tuple[Float64, Float64]:
        """Return each step's map of the buffers and covariance of its measurements; see `output_errors`."""
        maps = [self._whole_maps(top) for top in range(self.buffers)]
        tops = [height(step) for step in steps]
        state_maps = np.stack([state_map for state_map, _ in maps])[tops]
        return state_maps, np.stack([input_map @ input_map.T for _, input_map in maps])[tops]

    def _whole_maps(self, top: int) -> tuple[Float64, Float64]:
        of_buffers, of_fresh = self.maps(top)
        state_map, input_map = np.eye(self.buffers + 1, self.buffers), np.zeros((self.buffers + 1, top + 1))
        state_map[[top, -1]] = 0
        state_map[[top, -1], :top] = of_buffers
        input_map[[top, -1]] = of_fresh
        return state_map, input_map

    def materialize_strategy(self) -> Float64:
        return strategy(self.rounds)

    def materialize_noising(self) -> Float64:
        """Return the dense A^-1 B = S^-1 B_tree, shape (T, m): the same for every workload."""
        m = nodes_before(self.rounds)
        noising, held = np.empty((self.rounds, m)), np.zeros((self.buffers, m))
        for step in range(self.rounds):
            state_map, input_map = self._whole_maps(height(step))
            product = state_map @ held  # [estimates; noise row] by the measurements before this step
            product[:, nodes_before(step) : nodes_before(step + 1)] += input_map
            held, noising[step] = product[:-1], product[-1]
        return noising
