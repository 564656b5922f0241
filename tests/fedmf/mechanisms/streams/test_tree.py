"""The tree's matrix is that of complete dyadic blocks."""

import numpy as np
import pytest

from fedmf.mechanisms.streams import tree


@pytest.mark.parametrize("rounds", [1, 5, 8, 13])
def test_tree_rows_are_complete_dyadic_blocks(rounds):
    C = tree.strategy(rounds)
    blocks = {tuple(np.flatnonzero(row)) for row in C}
    expected = {
        tuple(range(start, start + 2**h))
        for h in range(5)
        for start in range(0, rounds, 2**h)
        if start + 2**h <= rounds
    }
    assert blocks == expected
    assert len(C) == len(expected)
