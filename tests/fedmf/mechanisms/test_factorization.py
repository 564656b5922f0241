"""A factorization used for another workload, and deployed again from the tables that were kept."""

import numpy as np
import pytest

from fedmf.errors import DataError, SettingError
from fedmf.mechanisms import design, momentum, prefix_sum, workload as workloads
from fedmf.mechanisms.schedules import rates

# One family for each kind of stream.
FAMILIES = ("optimal", "banded_toeplitz", "binary_tree", "optimal_dense")


@pytest.mark.parametrize("family", FAMILIES)
def test_kept_tables_make_the_same_stream_with_the_same_cost(family):
    mechanism = design(family, prefix_sum(12))
    assert mechanism.stream.tables.dtype == np.float32
    again = mechanism.with_tables(mechanism.stream.tables.copy())
    assert again.fingerprint == mechanism.fingerprint
    assert again.sensitivity == mechanism.sensitivity
    np.testing.assert_array_equal(again.per_round_error, mechanism.per_round_error)
    np.testing.assert_array_equal(again.left, mechanism.left)
    assert (again.family, again.workload) == (mechanism.family, mechanism.workload)


@pytest.mark.parametrize("family", FAMILIES)
def test_other_tables_are_costed_by_the_stream_that_they_make(family):
    """The noise is scaled by this sensitivity: that of the tables before would state too little noise as enough."""
    mechanism = design(family, prefix_sum(12))
    tables = mechanism.stream.tables.copy()
    if tables.ndim == 1:
        tables[1:] *= np.float32(0.5)
    else:
        tables *= np.float32(1.25)
    other = mechanism.with_tables(tables)
    np.testing.assert_array_equal(other.stream.tables, tables)
    decoder, encoder = other.materialize()
    norm = np.linalg.norm(encoder, axis=0).max()
    assert other.sensitivity == pytest.approx(norm, rel=1e-5)
    errors = norm * np.linalg.norm(decoder, axis=1)
    np.testing.assert_allclose(other.per_round_error, errors, rtol=1e-4)
    assert other.left[1, 1] == pytest.approx(errors[-1] ** 2, rel=1e-4)
    assert other.fingerprint != mechanism.fingerprint


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "spoil",
    [
        lambda tables: tables.astype(np.float64),
        lambda tables: tables[np.newaxis],
        lambda tables: tables[:0],
        lambda tables: tables * np.float32(np.nan),
    ],
    ids=["another type", "another form", "none", "not finite"],
)
def test_tables_that_a_stream_cannot_have_are_refused(family, spoil):
    mechanism = design(family, prefix_sum(12))
    with pytest.raises(DataError, match=rf"none of {family}"):
        mechanism.with_tables(spoil(mechanism.stream.tables))


def test_tables_whose_noise_grows_beyond_all_numbers_are_refused():
    mechanism = design("optimal", prefix_sum(12))
    with pytest.raises(DataError, match="make no finite noise; they are none of optimal"):
        mechanism.with_tables(mechanism.stream.tables * np.float32(1e30))


@pytest.mark.parametrize("family", ["optimal", "sqrt_toeplitz", "honaker_online", "honaker_full"])
def test_post_processing_changes_the_cost_and_not_the_stream(family):
    mechanism = design(family, prefix_sum(30))
    other = momentum(30, 0.8, rates("cosine", 30))
    processed = mechanism.costed_on(other)
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
        mechanism.costed_on(prefix_sum(31))
