"""Honest releases, drawn from the law itself, and how often tests may accuse them: what the tests of `fedmf.audit` share."""

import numpy as np
from scipy.stats import binom

from fedmf.audit import Stated, StatedEpoch
from fedmf.mechanisms import design, prefix_sum

HONEST = 1000


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

    def of(epoch):
        return epoch.sigma * epoch.noising @ rng.normal(size=(epoch.noising.shape[1], dimension))

    return np.array([[of(epoch) for epoch in stated.epochs] for _ in range(runs)])


def refuted(findings):
    return {finding.test for finding in findings if finding.refutes}


def named(findings, test):
    (finding,) = (finding for finding in findings if finding.test == test)
    return finding


def check_levels(tests, audit, reached, bounds=(), overall=1e-6):
    """Assert that of `HONEST` calls of `audit`, each a tuple of findings, none is refuted and few fall below each level.

    A test may fall below a level as often as that states, one time in 10^5 more. `reached` is a level and the share of audits
    that at least fall below it, but for `bounds`, which are conservative.
    """
    found = [audit() for _ in range(HONEST)]
    assert {len(findings) for findings in found} == {len(tests)}
    observed = {test: np.array([named(findings, test).observed for findings in found]) for test in tests}
    together = len(tests) * np.min(list(observed.values()), axis=0)
    assert np.all(together > overall)
    for level, values in [
        (0.05, together),
        *((level, one) for level in (0.01, 0.1, 0.3) for one in observed.values()),
    ]:
        assert np.count_nonzero(values <= level) <= binom.ppf(1 - 1e-5, HONEST, level)
    level, share = reached
    for test in set(tests) - set(bounds):
        assert np.count_nonzero(observed[test] <= level) >= share * HONEST
