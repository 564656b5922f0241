"""Every fault of the table is caught by the tests that must catch it, and the product as shipped by none."""

import pytest

from audit import hostile
from audit.matrix import catches, expected
from audit.sabotages import CAUGHT, ESCAPES
from experiments.audit.coupled import coupled_findings
from experiments.audit.scene import Scene

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("sabotage", CAUGHT, ids=lambda one: one.name)
def test_each_fault_is_caught_by_the_tests_that_must_catch_it(sabotage):
    found = catches(sabotage)
    for test in sabotage.caught_by:
        assert any(name.startswith(test) for name in found), found


@pytest.mark.parametrize("sabotage", ESCAPES, ids=lambda one: one.name)
def test_what_the_document_says_escapes_escapes(sabotage):
    assert catches(sabotage) == {}


def test_a_hostile_client_moves_no_more_than_the_server_lets_it():
    found = coupled_findings(hostile.SCENE, 0, hostile.around)
    assert not any(one.refutes or one.is_inconclusive for one in found)


def test_a_sabotage_is_in_force_only_while_its_scene_is_run():
    sabotage = next(one for one in CAUGHT if one.name == "a client asked through two messages")
    with sabotage.patches():
        assert any(one.refutes for one in coupled_findings(Scene("rotated", dimension=16), 0))
    assert not any(one.refutes for one in coupled_findings(Scene("rotated", dimension=16), 0))


def test_the_kinds_of_tests_are_told_from_their_names():
    sabotage = CAUGHT[0]
    assert expected(sabotage, "noise") == ["residual variance"]
    assert expected(sabotage, "coupled") == []
