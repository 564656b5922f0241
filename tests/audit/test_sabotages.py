"""Every fault of the table is caught by the tests that must catch it, and the product as shipped by none."""

import pytest

from audit.faults import edited
from audit.sabotages import CAUGHT, ESCAPES, HOSTILE, catches
from experiments.audit.scene import Scene
from experiments.audit.tested import coupled_findings

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("sabotage", CAUGHT, ids=lambda one: one.name)
def test_each_fault_is_caught_by_the_tests_that_must_catch_it(sabotage):
    assert sabotage.caught_by
    found, missed = catches(sabotage)
    assert (missed, bool(found)) == ([], True), found


@pytest.mark.parametrize("sabotage", ESCAPES, ids=lambda one: one.name)
def test_what_the_document_says_escapes_escapes(sabotage):
    assert catches(sabotage) == ({}, [])


@pytest.mark.parametrize("silent", [False, True])
def test_hostile_clients_move_no_more_than_the_server_lets_them(silent):
    """They neither clip nor look at what they send; where the scene is silent they answer twice, late and never too."""
    with edited(*HOSTILE):
        found = coupled_findings(Scene("rotated, hostile clients", silent=silent), 0)
    assert not any(one.refutes or one.is_inconclusive for one in found)


def test_a_sabotage_is_in_force_only_while_its_scene_is_run():
    sabotage = next(one for one in CAUGHT if one.name == "a client asked through two messages")
    with sabotage.patches():
        assert any(one.refutes for one in coupled_findings(Scene("rotated", dimension=16), 0))
    assert not any(one.refutes for one in coupled_findings(Scene("rotated", dimension=16), 0))
