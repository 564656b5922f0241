"""The edge to dp_accounting, and what is refused there."""

import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp import RdpAccountant

from fedmf.accounting import EpochEvent, Ledger, gaussian_epsilon, rdp
from fedmf.accounting.conversion import epsilon_of_order
from fedmf.accounting.dp_events import compose_with, to_dp_event
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


def test_others_events_compose_with_a_ledger_by_adding_divergences():
    ledger = Ledger((SPARSE,) * 3)
    epsilon, order = compose_with(ledger, dp_event.ZCDpEvent(rho=0.125, xi=0.0), delta=1e-5)
    total = order * 0.125 + 3 * rdp(SPARSE, order)
    assert epsilon == pytest.approx(epsilon_of_order(order, total, 1e-5), rel=1e-9)
    # rho = .125 has the Renyi curve of a Gaussian with noise multiplier 2, which we account ourselves.
    ours = ledger.record(EpochEvent(2.0, 1.0, 1.0)).spent(delta=1e-5).epsilon
    assert ours <= epsilon == pytest.approx(ours, rel=1e-2)
    assert compose_with(ledger, dp_event.GaussianDpEvent(2.0), delta=1e-5)[0] == pytest.approx(epsilon)
    sampled = dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(1.0))
    assert compose_with(ledger, sampled, delta=1e-5)[0] > ledger.spent(delta=1e-5).epsilon


def test_dp_accountings_renyi_curve_is_not_used_under_replacement_because_it_ignores_the_relation():
    theirs = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    theirs.compose(dp_event.GaussianDpEvent(5.0), 4)
    exact = Ledger((PLAIN,) * 4).spent(delta=1e-5, adjacency="replace").epsilon
    assert exact == pytest.approx(gaussian_epsilon(4 / 5, 1e-5))
    assert exact == pytest.approx(3.387, abs=1e-3)
    assert theirs.get_epsilon(1e-5) == pytest.approx(1.694, abs=1e-3)


def test_compositions_that_are_not_valid_are_refused():
    with pytest.raises(NotCoveredError, match="sparsified epoch"):
        to_dp_event(SPARSE)
    assert to_dp_event(EpochEvent(0.0, 0.1, 0.5)) == dp_event.NonPrivateDpEvent()
    with pytest.raises(NotCoveredError, match="no Renyi curve"):
        compose_with(Ledger((SPARSE,)), dp_event.UnsupportedDpEvent(), delta=1e-5)
