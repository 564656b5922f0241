"""The command: what it prints and leaves, its exit codes, and what it does not take."""

import json
import logging

import pytest

import experiments.audit.__main__ as command
import experiments.audit.attack as attacks
from experiments.audit.__main__ import AS_SHIPPED, AuditSettings, document_of, found_in, print_text
from experiments.audit.sabotage import CONTROLS, HALF_NOISE, patched
from experiments.audit.scene import Scene, cohorts, plan_of
from experiments.cli.command import guard
from experiments.settings.compose import compose
from fedmf.audit import Finding
from fedmf.errors import RunDirectoryError, SettingError
from fedmf.mechanisms import FAMILIES
from server import strategy

pytestmark = pytest.mark.long

FINE = Finding("residual variance", 0.5, 1e-7, False, "p")
REFUTES = Finding("residual variance", 0.0, 1e-7, True, "p")
UNSURE = Finding("residual variance", 0.5, 1e-7, False, "p", is_inconclusive=True)


@pytest.fixture
def call(tmp_path, capsys, monkeypatch):
    """Run the command in this process with one scene of each kind and no attacks; return its exit code and document."""
    monkeypatch.setattr(command, "KINDS", tuple((scenes[:1], find) for scenes, find in command.KINDS))
    monkeypatch.setattr(command, "attack_findings", lambda mechanism, seed: [])
    levels = {name: logging.getLogger(name).level for name in ("server", "client.app")}

    def called(*overrides):
        words = [f"directory={tmp_path / 'audit'}", "output=json", *overrides]
        given = compose("audit", words, AuditSettings)
        capsys.readouterr()  # what made a run has printed
        code = 0
        try:
            command.audit(given)
        except SystemExit as end:
            code = end.code
        return code, json.loads(capsys.readouterr().out)

    yield called
    for name, level in levels.items():  # what the product may log, which other tests of this process read
        logging.getLogger(name).setLevel(level)


def test_a_small_audit_passes_and_leaves_its_document(tmp_path, call):
    code, document = call("sabotage=[a stale sum]")
    assert code == document["code"] == 0
    assert {row["verdict"] for row in document["rows"] if row["sabotage"] == AS_SHIPPED} == {"nothing found"}
    ((name, caught_by),) = [(one["sabotage"], one["caught_by"]) for one in document["sabotages"]]
    assert (name, "coupled sensitivity, L2" in caught_by) == ("a stale sum", True)
    assert json.loads((tmp_path / "audit" / "audit.json").read_text()) == document
    with pytest.raises(RunDirectoryError, match="exists already"):
        call("sabotage=[]")


def test_a_product_that_is_broken_is_refuted(call):
    """The fault is in force around the command, which knows nothing of it."""
    with CONTROLS[1].patches():
        code, document = call("sabotage=[]")
    assert (code, document["code"]) == (1, 1)
    assert "REFUTED" in document["conclusion"]


def test_where_the_pipeline_raises_the_audit_ends_with_one_sentence_and_leaves_nothing(
    tmp_path, call, capsys
):
    with patched((strategy, "apply_release", lambda *given: [][0])):
        assert guard(lambda: call("sabotage=[]")) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert "the pipeline itself failed in the scene rotated (as shipped): IndexError: list index" in said
    assert not (tmp_path / "audit").exists()


@pytest.mark.parametrize(
    ("shipped", "broken", "code"),
    [(FINE, REFUTES, 0), (FINE, FINE, 1), (REFUTES, REFUTES, 1), (UNSURE, REFUTES, 3), (UNSURE, FINE, 1)],
)
def test_exit_codes_follow_from_the_rows_which_people_are_shown(shipped, broken, code, capsys):
    sabotage = CONTROLS[1]
    rows = found_in("a scene", AS_SHIPPED, lambda: [shipped]) + found_in("s", sabotage.name, lambda: [broken])
    document = document_of(rows, [sabotage])
    assert document["code"] == code
    assert document["sabotages"][0]["missed_by"] == ([] if broken.refutes else ["residual variance"])
    print_text(document)
    printed = capsys.readouterr().out
    shown = ("a scene", "residual variance", f"p {shipped.observed:.4g}", sabotage.name, shipped.verdict)
    assert all(words in printed for words in shown)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("sabotage=[no cliping]", "sabotage is 'no cliping'.* did you mean no clipping"),
        ("mechanisms=[optimum]", "mechanisms is 'optimum'"),
    ],
)
def test_names_that_are_not_known_are_an_error(tmp_path, call, override, words):
    with pytest.raises(SettingError, match=words):
        call(override)
    assert not (tmp_path / "audit").exists()


def test_every_mechanism_has_a_scene_in_which_every_client_takes_part_once_an_epoch():
    for mechanism in FAMILIES:
        rounds = cohorts(plan_of(Scene("any", mechanism, rounds_per_epoch=4)))
        assert all(sorted(epoch.ravel()) == list(range(16)) for epoch in rounds), mechanism


def test_both_attacks_find_halved_noise_and_nothing_in_the_product():
    honest = attacks.attack_findings("optimal", 0)
    assert [one.refutes for one in honest] == [False, False]
    assert all(one.observed > 0.5 for one in honest)  # they are no attacks that see nothing
    with HALF_NOISE.patches():
        assert [one.refutes for one in attacks.attack_findings("optimal", 0)] == [True, True]
