"""The ledger: append-only, replayable, and the only source of epsilon."""

import dataclasses
import json
import math

import pytest

from fedmf.accounting import EpochEvent, Ledger, privacy_spent
from fedmf.accounting.conversion import epsilon_of_order
from fedmf.accounting.renyi import rdp
from fedmf.errors import DataError, PrivacyBudgetExhausted

EVENT = EpochEvent(noise_multiplier=0.05, keep_probability=0.01, linf_over_l2=0.006)
OTHER = EpochEvent(noise_multiplier=0.08, keep_probability=0.02, linf_over_l2=0.01)


def test_recording_leaves_the_old_ledger_as_it_was():
    empty = Ledger()
    one = empty.record(EVENT)
    assert empty.entries == ()
    assert one.entries == (EVENT,)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.entries = ()


def test_epsilon_is_a_function_of_the_ledger_alone():
    ledger = Ledger((EVENT,) * 5)
    assert ledger.spent(delta=1e-5) == privacy_spent(EVENT, 5, delta=1e-5)
    assert Ledger((EVENT, OTHER, EVENT)).spent(delta=1e-5) == Ledger((OTHER, EVENT, EVENT)).spent(delta=1e-5)


def test_a_replayed_ledger_gives_the_same_epsilon_to_the_last_bit():
    ledger = Ledger((EVENT, OTHER, EpochEvent(1 / 3, 1.0, 0.1)))
    replayed = Ledger()
    for event in Ledger.from_json(ledger.to_json()).entries:
        replayed = replayed.record(event)
    assert replayed == ledger
    assert replayed.spent(delta=1e-7, adjacency="replace") == ledger.spent(delta=1e-7, adjacency="replace")


def test_different_events_compose_in_rdp():
    found = Ledger((EVENT, OTHER, OTHER)).spent(delta=1e-5)
    total = rdp(EVENT, found.order) + 2 * rdp(OTHER, found.order)
    assert found.epsilon == pytest.approx(epsilon_of_order(found.order, total, 1e-5), rel=1e-9)


def test_a_partial_epoch_counts_whole():
    """The ledger has no entry smaller than an epoch: one started is one recorded."""
    assert {field.name for field in dataclasses.fields(Ledger)} == {"entries"}
    started = Ledger((EVENT, EVENT)).record(EVENT)
    assert started.spent(delta=1e-5).epsilon == privacy_spent(EVENT, 3, delta=1e-5).epsilon


def test_a_budget_stops_the_epoch_that_would_exceed_it_before_it_begins():
    ledger, limit = Ledger(), privacy_spent(EVENT, 3, delta=1e-5).epsilon
    for _ in range(3):
        ledger.check_next(EVENT, limit, delta=1e-5)
        ledger = ledger.record(EVENT)
    with pytest.raises(PrivacyBudgetExhausted, match=r"epoch 4 would bring epsilon from .* not started"):
        ledger.check_next(EVENT, limit, delta=1e-5)
    assert ledger.entries == (EVENT,) * 3


def test_the_budget_is_checked_under_the_adjacency_asked_for():
    limit = privacy_spent(EVENT, 1, delta=1e-5).epsilon
    assert Ledger().check_next(EVENT, limit, delta=1e-5).epsilon == limit
    with pytest.raises(PrivacyBudgetExhausted, match="replace"):
        Ledger().check_next(EVENT, limit, delta=1e-5, adjacency="replace")


def test_no_noise_exhausts_every_budget():
    with pytest.raises(PrivacyBudgetExhausted, match="inf"):
        Ledger().check_next(EpochEvent(0.0, 1.0, 1.0), 1e9, delta=1e-5)


def test_an_empty_ledger_has_spent_nothing():
    assert Ledger().spent(delta=1e-5).epsilon == 0


GOOD = {"format": "fedmf-ledger-1", "entries": [dataclasses.asdict(EVENT)]}


@pytest.mark.parametrize(
    "document",
    [
        "not json",
        "[]",
        json.dumps({**GOOD, "format": "fedmf-ledger-0"}),
        json.dumps({**GOOD, "entries": 3}),
        json.dumps({**GOOD, "entries": [{**GOOD["entries"][0], "count": 2}]}),
        json.dumps({**GOOD, "entries": [{"noise_multiplier": 1.0}]}),
        json.dumps({**GOOD, "entries": [{**GOOD["entries"][0], "noise_multiplier": -1.0}]}),
        json.dumps({**GOOD, "entries": [{**GOOD["entries"][0], "noise_multiplier": True}]}),
        json.dumps({**GOOD, "entries": [{**GOOD["entries"][0], "noise_multiplier": math.nan}]}),
        json.dumps({**GOOD, "entries": [{**GOOD["entries"][0], "noise_multiplier": "1"}]}),
    ],
)
def test_a_ledger_that_is_not_understood_is_refused(document):
    assert Ledger.from_json(json.dumps(GOOD)).entries == (EVENT,)
    with pytest.raises(DataError):
        Ledger.from_json(document)
