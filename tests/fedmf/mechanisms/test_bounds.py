"""Closed-form bounds against dense singular values and the certificate."""

import numpy as np
import pytest

from fedmf.mechanisms import bounds, design, momentum, prefix_sum, workload as workloads


def test_square_root_is_above_the_published_bound_up_to_six_rounds():
    """Henzinger et al., Theorem 2, fails for T <= 6 and holds from 7 on."""
    for rounds in range(1, 40):
        loss = design("sqrt_toeplitz", prefix_sum(rounds)).root_loss
        assert (loss <= bounds.henzinger_upper(rounds)) == (rounds > 6)


def test_schatten_closed_form_is_the_nuclear_norm():
    for rounds in (1, 2, 7, 50):
        A = workloads.materialize(prefix_sum(rounds))
        nuclear = np.linalg.svd(A, compute_uv=False).sum() / np.sqrt(rounds)
        assert bounds.prefix_sum_schatten(rounds) == pytest.approx(nuclear, rel=1e-12)
    assert bounds.schatten(momentum(20, 0.9)) < design("optimal", momentum(20, 0.9)).root_loss
    assert bounds.schatten(momentum(1025, 0.9)) is None
    assert bounds.schatten(prefix_sum(5000)) == bounds.prefix_sum_schatten(5000)


def test_closed_form_bounds_are_below_the_certificate():
    for rounds in (2, 16, 300):
        certified = bounds.lower_bound(prefix_sum(rounds))
        assert bounds.henzinger_lower(rounds) < certified
        assert bounds.prefix_sum_schatten(rounds) < certified
