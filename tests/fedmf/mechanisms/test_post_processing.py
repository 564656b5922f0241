"""A factorization used for another workload."""

import numpy as np
import pytest

from fedmf.errors import SettingError
from fedmf.mechanisms import design, momentum, prefix_sum, workload as workloads
from fedmf.mechanisms.post_processing import post_process
from fedmf.mechanisms.schedules import rates


@pytest.mark.parametrize("family", ["optimal", "sqrt_toeplitz", "honaker_online", "honaker_full"])
def test_post_processing_changes_the_cost_and_not_the_stream(family):
    mechanism = design(family, prefix_sum(30))
    other = momentum(30, 0.8, rates("cosine", 30))
    processed = post_process(mechanism, other)
    assert processed.stream is mechanism.stream
    assert processed.sensitivity == mechanism.sensitivity
    B, C = processed.materialize()
    np.testing.assert_allclose(
        B @ C, workloads.materialize(other), atol=1e-4 if family == "honaker_full" else 1e-10
    )
    np.testing.assert_allclose(
        processed.per_round_error, mechanism.sensitivity * np.linalg.norm(B, axis=1), rtol=1e-10
    )
    with pytest.raises(SettingError, match="31 rounds"):
        post_process(mechanism, prefix_sum(31))
