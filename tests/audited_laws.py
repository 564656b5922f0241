"""Honest releases and masks, drawn from the law itself: what the tests of this folder are calibrated on."""

import numpy as np

from fedmf.audit import Stated, StatedEpoch
from fedmf.mechanisms import design, prefix_sum


def banded(rounds=4, second=0.5):
    """A strategy matrix of somebody's own: two bands."""
    return np.eye(rounds) + second * np.eye(rounds, k=-1)


def banded_statement(rounds=4, epochs=2, sigma=1.5, **bounds):
    return Stated.of_strategy(banded(rounds), sigma=sigma, l2_norm=1.0, epochs=epochs, **bounds)


def tree_statement(rounds=4, sigma=1.0):
    fitted = design("binary_tree", prefix_sum(rounds))
    epoch = StatedEpoch(fitted.stream.materialize_noising(), fitted.sensitivity, sigma)
    return Stated((epoch,), 1.0), fitted.stream.materialize_strategy()


def noise(stated, rng, runs=5, dimension=16):
    """Noise of the stated law, (runs, epochs, T, d), from the noising matrices themselves."""
    return np.stack(
        [
            np.stack(
                [
                    e.sigma * e.noising @ rng.normal(size=(e.noising.shape[1], dimension))
                    for e in stated.epochs
                ]
            )
            for _ in range(runs)
        ]
    )


def masks(rng, gamma=0.2, runs=5, epochs=2, rounds=3, n=4, dimension=64):
    return rng.random((runs, epochs, rounds, n, dimension)) < gamma


def dealt(epochs=2, rounds=3, n=4, seed=0):
    """Clients of each epoch and round, disjoint in an epoch."""
    rng = np.random.default_rng(seed)
    return np.stack([rng.permutation(rounds * n).reshape(rounds, n) for _ in range(epochs)])


def refuted(findings):
    return {finding.test for finding in findings if finding.refutes}


def named(findings, test):
    (finding,) = (finding for finding in findings if finding.test == test)
    return finding
