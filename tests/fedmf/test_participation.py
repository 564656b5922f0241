import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmf.errors import ParticipationError
from fedmf.participation import epoch_cohorts, rounds_that_fit
from fedmf.randomness import PublicSeed


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_cohorts_of_an_epoch_are_disjoint(data):
    clients = data.draw(st.integers(1, 300))
    cohort_size = data.draw(st.integers(1, clients))
    rounds = data.draw(st.integers(1, clients // cohort_size))
    cohorts = epoch_cohorts(
        clients, cohort_size, rounds, epoch=data.draw(st.integers(0, 5)), seed=PublicSeed(1)
    )
    assert cohorts.shape == (rounds, cohort_size)
    assert len(np.unique(cohorts)) == cohorts.size
    assert 0 <= cohorts.min() <= cohorts.max() < clients


def test_epochs_and_seeds_shuffle_anew():
    def first(epoch, seed):
        return epoch_cohorts(100, 10, 10, epoch=epoch, seed=PublicSeed(seed)).tolist()

    assert first(0, 1) != first(1, 1)
    assert first(0, 1) != first(0, 2)
    assert first(0, 1) == first(0, 1)


def test_too_many_rounds_names_the_largest_that_fits():
    with pytest.raises(
        ParticipationError,
        match=r"largest rounds_per_epoch that fits is 22, .*cohort_size that fits is 62",
    ):
        rounds_that_fit(1437, 64, 23)
    with pytest.raises(ParticipationError, match="at most 10 fits"):
        rounds_that_fit(10, 11)
    assert rounds_that_fit(1437, 64, 22) == 22
