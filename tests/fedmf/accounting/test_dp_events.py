"""Our epochs among dp_accounting's events, and what is refused there."""

import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.privacy_accountant import NeighboringRelation, UnsupportedEventError
from dp_accounting.rdp import RdpAccountant

from fedmf.accounting import EpochEvent, Ledger, divergence, gaussian_epsilon, privacy_spent, rdp
from fedmf.accounting.conversion import epsilon_of_order
from fedmf.accounting.dp_events import ZeroOutAccountant, to_dp_event
from fedmf.errors import NotCoveredError

SPARSE = EpochEvent(noise_multiplier=0.05, keep_probability=0.01, linf_over_l2=0.006)
PLAIN = EpochEvent(noise_multiplier=5.0, keep_probability=1.0, linf_over_l2=1.0)


@pytest.mark.parametrize(
    ("adjacency", "relation"),
    [("zero_out", NeighboringRelation.REPLACE_SPECIAL), ("replace", NeighboringRelation.REPLACE_ONE)],
)
def test_a_plain_epoch_is_a_gaussian_whose_epsilon_dp_accounting_confirms(adjacency, relation):
    accountant = PLDAccountant(relation)
    accountant.compose(to_dp_event(PLAIN), 4)
    exact = Ledger((PLAIN,) * 4).spent(delta=1e-5, adjacency=adjacency).epsilon
    assert accountant.get_epsilon(1e-5) == pytest.approx(exact, rel=1e-3)


COUNTED = EpochEvent(0.05, 0.01, 0.006, 20.0), EpochEvent(5.0, 1.0, 1.0, 20.0)  # these also release a count


@pytest.mark.parametrize(("adjacency", "times"), [("zero_out", 1), ("replace", 2)])
def test_replacement_doubles_what_a_client_moves_of_sums_and_not_of_counts(adjacency, times):
    theirs = PLDAccountant(NeighboringRelation.REPLACE_SPECIAL)
    theirs.compose(to_dp_event(EpochEvent(5.0 / times, 1.0, 1.0, 20.0)), 4)
    ours = privacy_spent(COUNTED[1], 4, delta=1e-5, adjacency=adjacency)
    assert ours.epsilon == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-3)
    for event in COUNTED:
        for order in (1.1, 3.7, 64.0):
            both, sums = (divergence({one: 3}, order, adjacency) for one in (event, event.without_count))
            assert both - sums == pytest.approx(3 * order / (2 * 20.0**2), rel=1e-9)
    theirs = ZeroOutAccountant().compose(to_dp_event(COUNTED[0]), 3).get_epsilon(1e-5)
    assert theirs == pytest.approx(privacy_spent(COUNTED[0], 3, delta=1e-5).epsilon, rel=2e-2)
    with pytest.raises(NotCoveredError, match="accountant=tight is proved for the sums"):
        privacy_spent(COUNTED[0], 3, delta=1e-5, accountant="tight")


def test_our_epochs_compose_in_an_accountant_of_dp_accounting_by_adding_divergences():
    """The Renyi curve of rho = 0.125 is that of a Gaussian with noise multiplier 2, which we account ourselves."""
    alone = ZeroOutAccountant().compose(to_dp_event(SPARSE), 3)
    ours = Ledger((SPARSE,) * 3)
    assert ours.spent(delta=1e-5).epsilon <= alone.get_epsilon(1e-5) * (1 + 1e-9)
    assert alone.get_epsilon(1e-5) == pytest.approx(ours.spent(delta=1e-5).epsilon, rel=2e-2)
    nested = dp_event.ComposedDpEvent(
        [dp_event.SelfComposedDpEvent(to_dp_event(SPARSE), 3), dp_event.ZCDpEvent(rho=0.125, xi=0.0)]
    )
    epsilon, order = ZeroOutAccountant().compose(nested).get_epsilon_and_optimal_order(1e-5)
    total = order * 0.125 + 3 * rdp(SPARSE, order)
    assert epsilon == pytest.approx(epsilon_of_order(order, total, 1e-5), rel=1e-9)
    exact = ours.record(EpochEvent(2.0, 1.0, 1.0)).spent(delta=1e-5).epsilon
    assert exact <= epsilon == pytest.approx(exact, rel=1e-2)
    gaussian = alone.compose(to_dp_event(EpochEvent(2.0, 1.0, 1.0)))
    assert gaussian.get_epsilon(1e-5) == pytest.approx(epsilon)


def test_dp_accountings_renyi_curve_is_not_used_under_replacement_because_it_ignores_the_relation():
    theirs = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    theirs.compose(dp_event.GaussianDpEvent(5.0), 4)
    exact = Ledger((PLAIN,) * 4).spent(delta=1e-5, adjacency="replace").epsilon
    assert exact == pytest.approx(gaussian_epsilon(4 / 5, 1e-5))
    assert exact == pytest.approx(3.387, abs=1e-3)
    assert theirs.get_epsilon(1e-5) == pytest.approx(1.694, abs=1e-3)


def test_compositions_that_are_not_valid_are_refused():
    """A sampled epoch of ours has no known divergence; loss distributions of one would be a lower bound."""
    ours = to_dp_event(SPARSE)
    for accountant, event in (
        (PLDAccountant(NeighboringRelation.REPLACE_SPECIAL), ours),
        (RdpAccountant(), ours),
        (ZeroOutAccountant(), dp_event.PoissonSampledDpEvent(0.1, ours)),
    ):
        with pytest.raises(UnsupportedEventError):
            accountant.compose(event)
    without_noise = ZeroOutAccountant().compose(to_dp_event(EpochEvent(0.0, 0.1, 0.5)))
    assert without_noise.get_epsilon(1e-5) == float("inf")
