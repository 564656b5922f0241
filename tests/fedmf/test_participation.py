import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedmf.errors import ParticipationError
from fedmf.participation import SHUFFLED, epoch_cohorts, rounds_that_fit
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
    drawn = np.stack(cohorts)
    assert (len(cohorts), drawn.shape) == (rounds, (rounds, cohort_size))
    assert len(np.unique(drawn)) == drawn.size
    assert 0 <= drawn.min() <= drawn.max() < clients


def test_epochs_and_seeds_shuffle_anew():
    def first(epoch, seed):
        return epoch_cohorts(100, 10, 10, epoch=epoch, seed=PublicSeed(seed))[0].tolist()

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


@pytest.mark.parametrize("clients", [SHUFFLED, SHUFFLED + 1, 70_001])
def test_a_whole_epoch_of_many_clients_asks_each_at_most_once(clients):
    cohorts = epoch_cohorts(clients, 1000, clients // 1000, epoch=3, seed=PublicSeed(2))
    asked = np.concatenate(cohorts)
    assert len(np.unique(asked)) == len(asked) == clients // 1000 * 1000
    assert 0 <= asked.min() <= asked.max() < clients


def test_over_epochs_every_client_is_in_a_cohort_equally_often():
    """Of 10^6 clients by thousands: 300 cohorts of 1000, so that 300 are expected of each thousand."""
    asked = np.concatenate(
        [epoch_cohorts(10**6, 1000, 9, epoch=epoch, seed=PublicSeed(4))[5] for epoch in range(300)]
    )
    seen = np.bincount(asked // 1000, minlength=1000)
    # 999 degrees of freedom: mean 999, standard deviation 45.
    assert ((seen - 300.0) ** 2 / 300).sum() == pytest.approx(999, abs=270)


def test_up_to_a_limit_the_order_is_the_shuffle_that_published_numbers_were_made_with():
    cohorts = epoch_cohorts(3400, 100, 34, epoch=2, seed=PublicSeed(5))
    order = PublicSeed(5).generator("cohorts", 2).permutation(3400)
    np.testing.assert_array_equal(np.concatenate(cohorts), order)
    cohorts[0][:] = 0  # a caller's array is its own
    np.testing.assert_array_equal(np.concatenate(cohorts), order)


@pytest.mark.parametrize("clients", [10**7, 10**9])
def test_a_round_of_any_number_of_clients_takes_no_more_memory_than_its_cohort(clients):
    first, cohorts = (
        epoch_cohorts(clients, 1000, clients // 1000, epoch=epoch, seed=PublicSeed(1)) for epoch in (0, 1)
    )
    assert len(first[0]) == 1000  # what is imported once is there
    tracemalloc.start()
    assert [len(cohort) for cohort in cohorts[-2:]] == [1000, 1000]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300_000
    with pytest.raises(IndexError):
        cohorts[clients // 1000]
