"""What is deployed of a factorization, kept as one array and deployed again."""

import numpy as np
import pytest

from fedmf.errors import DataError
from fedmf.mechanisms import design, prefix_sum
from fedmf.mechanisms.deployed import tables_of, with_tables

# One family for each kind of stream.
FAMILIES = ("optimal", "banded_toeplitz", "binary_tree", "optimal_dense")


@pytest.mark.parametrize("family", FAMILIES)
def test_kept_tables_make_the_same_stream_with_the_same_cost(family):
    mechanism = design(family, prefix_sum(12))
    tables = tables_of(mechanism)
    assert tables.dtype == np.float32
    again = with_tables(mechanism, tables.copy())
    assert again.fingerprint == mechanism.fingerprint
    assert again.sensitivity == mechanism.sensitivity
    np.testing.assert_array_equal(again.per_round_error, mechanism.per_round_error)
    np.testing.assert_array_equal(again.left, mechanism.left)
    assert (again.family, again.workload) == (mechanism.family, mechanism.workload)


@pytest.mark.parametrize("family", FAMILIES)
def test_other_tables_are_costed_by_the_stream_that_they_make(family):
    """The noise is scaled by this sensitivity: that of the tables before would state too little noise as enough."""
    mechanism = design(family, prefix_sum(12))
    tables = tables_of(mechanism).copy()
    if tables.ndim == 1:
        tables[1:] *= np.float32(0.5)
    else:
        tables *= np.float32(1.25)
    other = with_tables(mechanism, tables)
    np.testing.assert_array_equal(tables_of(other), tables)
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
        with_tables(mechanism, spoil(tables_of(mechanism)))
