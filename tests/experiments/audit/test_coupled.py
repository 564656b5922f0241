"""Coupled runs of the real pipeline: honest ones spend exactly what is accounted, broken ones are named by their row."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import client.app
import client.privatize
from experiments.audit import coupled, crossing as crossing_module
from experiments.audit.coupled import (
    JOURNAL,
    OWN_ROUND,
    SCENES,
    SENSITIVITY,
    WHOLE_VECTOR,
    coupled_rows,
)
from experiments.audit.crossing import CANARIES, canary_vector, crossing, holdings, needed
from experiments.audit.row import Verdict
from experiments.audit.sabotage import SABOTAGES, Sabotage, patched
from experiments.audit.sabotage.clipping import WITHOUT_A_LOOK_FOR_NAN, WITHOUT_CLIPPING, broken, in_round
from experiments.audit.scene import plan_of, steps_of
from fedmf.updates.clipping import l2_norm

pytestmark = pytest.mark.long

PRIVATIZE = client.privatize.privatize
ROTATED, PADDED, MASKED, _, INT8, RESUMED = SCENES[:6]
TREE = SCENES[8]


def rows_with(rows, verdict):
    return {row.test for row in rows if row.verdict is verdict}


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_an_honest_pipeline_is_not_refuted_and_spends_all_that_is_accounted(scene):
    rows = coupled_rows(scene, pairs=None if scene is INT8 else 5)  # all take seconds
    masked = {WHOLE_VECTOR} if scene.keep_probability < 1 else set()
    assert rows_with(rows, Verdict.nothing_found) == {SENSITIVITY, OWN_ROUND, JOURNAL} | masked
    for row in (
        row for row in rows if row.test == WHOLE_VECTOR
    ):  # put together from both epochs, whose signs differ
        assert 0.9 < float(row.observed.split()[0]) < 1.0001
    (row,) = (row for row in rows if row.test == SENSITIVITY)
    spent = float(row.observed.split()[0])
    if scene.mechanism == "binary_tree":  # its noise tells less than its columns, which are accounted
        assert 0.7 < spent < 1.0002
    else:
        assert spent == pytest.approx(1, abs=2e-4)


def clipping_on_the_server_only():
    def unbounded(vector, bound, **_):
        return vector

    return patched((client.privatize, "clip_l2", unbounded), (client.privatize, "clip_linf", unbounded))


@pytest.mark.parametrize(
    ("name", "scene", "expected"),
    [
        ("no clipping", ROTATED, {SENSITIVITY}),
        ("no clipping in the last epoch", PADDED, {SENSITIVITY}),
        ("no clipping", MASKED, {SENSITIVITY, WHOLE_VECTOR}),
        ("what is not finite is passed on", ROTATED, {SENSITIVITY}),
        ("a stale sum", MASKED, {SENSITIVITY, OWN_ROUND}),
        ("a stale sum", TREE, {SENSITIVITY, OWN_ROUND}),
        ("a second participation", ROTATED, {SENSITIVITY, OWN_ROUND}),
        ("changes in place of updates", ROTATED, {SENSITIVITY}),
        ("changes in place of updates", MASKED, {SENSITIVITY}),
        ("momentum that leaks", ROTATED, {JOURNAL}),
        ("an initial model that leaks", ROTATED, {OWN_ROUND}),
        ("noise drawn anew after a resume", RESUMED, {JOURNAL}),
        ("a journal ahead of the noise", RESUMED, {JOURNAL}),
        ("noise only where something was sent", MASKED, {SENSITIVITY}),
    ],
)
def test_what_is_broken_is_refuted_by_its_row(name, scene, expected):
    found = rows_with(coupled_rows(scene, SABOTAGES[name], pairs=5), Verdict.refuted)
    assert expected <= found


def test_bounds_that_the_server_alone_enforces_are_refuted_by_the_whole_vector():
    """A masked part within the bounds of the whole: no single release exceeds anything, and the theorem is void."""
    trusting = Sabotage("clipping on the server only", "", patches=clipping_on_the_server_only)
    assert rows_with(coupled_rows(MASKED, trusting), Verdict.refuted) == {WHOLE_VECTOR}


def test_pairs_in_which_no_client_is_seen_are_inconclusive(monkeypatch):
    monkeypatch.setattr(
        crossing_module, "canary_vector", lambda scene, plan, *_: np.zeros(scene.dimension, np.float32)
    )
    for scene in (ROTATED, MASKED):
        assert rows_with(coupled_rows(scene, pairs=2), Verdict.inconclusive) >= {
            SENSITIVITY,
            OWN_ROUND,
            JOURNAL,
        }


def test_a_run_that_a_clients_vector_ends_is_refuted():
    from fedmf.errors import DivergedError

    def ending(vector, bound):
        if np.isnan(vector).any() or l2_norm(vector) > 5:
            raise DivergedError("the model is no longer finite")
        return vector

    ends = Sabotage(
        "ends", "", patches=lambda: patched((coupled, "play", lambda *a, **k: ending(np.full(4, np.nan), 1)))
    )
    with ends.patches():
        rows = coupled_rows(ROTATED)
    assert [(row.test, row.verdict) for row in rows] == [(OWN_ROUND, Verdict.refuted)]
    assert "no longer finite" in rows[0].note


@pytest.mark.parametrize("scene", [ROTATED, PADDED, MASKED, INT8], ids=lambda scene: scene.name)
def test_canaries_lie_where_their_names_say(scene):
    plan = plan_of(scene)
    vectors = {name: canary_vector(scene, plan, name) for name in CANARIES}
    sent = {
        name: plan.rotation.rotate(vector) if scene.keeps_all else vector for name, vector in vectors.items()
    }
    norms = {name: l2_norm(vector) for name, vector in vectors.items()}
    largest = {name: float(np.abs(vector).max()) for name, vector in sent.items()}
    bounds = plan.bounds
    assert norms["over both bounds"] >= 9.99 * bounds.l2_norm
    assert largest["over both bounds"] >= 9.99 * bounds.linf_norm
    assert norms["over the L2 bound"] == pytest.approx(10 * bounds.l2_norm, rel=1e-4)
    assert largest["over the L-infinity bound"] == pytest.approx(10 * bounds.linf_norm, rel=1e-4)
    assert not np.isfinite(vectors["not finite"]).all()
    assert norms["at both bounds"] == pytest.approx(bounds.l2_norm, rel=0.05)
    assert largest["at both bounds"] <= bounds.linf_norm * (1 + 1e-5)


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_each_kind_of_vector_is_sent_in_every_round_and_what_is_over_both_bounds_by_everyone(scene):
    plan = plan_of(scene)
    turns = crossing(plan)[: needed(plan)]
    rounds = {(epoch, step) for epoch in range(scene.epochs) for step in range(scene.rounds_per_epoch)}
    for canary in CANARIES:
        clients = [client for kind, client in turns if kind == canary]
        assert {place for client in clients for place in enumerate(steps_of(plan, client))} == rounds
    assert {client for kind, client in turns if kind == CANARIES[0]} == set(range(plan.participation.clients))
    assert [kind for kind, _ in turns[: len(CANARIES)]] == list(CANARIES)
    everything = crossing(plan)
    assert len(everything) == len(set(everything)) == len(CANARIES) * plan.participation.clients


@pytest.mark.parametrize("number", range(1, 7))
def test_what_is_not_finite_in_one_round_only_is_found_in_that_round(number):
    patches = partial(broken, WITHOUT_A_LOOK_FOR_NAN, in_round(number))
    (row,) = (
        row
        for row in coupled_rows(PADDED, Sabotage("not finite in a round", "", patches=patches))
        if row.test == SENSITIVITY
    )
    assert row.verdict is Verdict.refuted
    assert "client not finite" in row.note


@pytest.mark.parametrize("number", range(1, 7))
@pytest.mark.parametrize("kind", [kind for kind in CANARIES if kind.startswith("over")])
def test_what_is_over_a_bound_in_one_round_only_is_found_by_the_kind_that_is_over_it(
    number, kind, monkeypatch
):
    """The other kinds are left out, so that none of them finds it first."""
    plan = plan_of(PADDED)
    turns = [turn for turn in crossing(plan)[: needed(plan)] if turn[0] == kind]
    monkeypatch.setattr(coupled, "crossing", lambda plan: turns)
    patches = partial(broken, WITHOUT_CLIPPING, in_round(number))
    unclipped = Sabotage("unclipped in a round", "", patches=patches)
    assert SENSITIVITY in rows_with(coupled_rows(PADDED, unclipped, pairs=len(turns)), Verdict.refuted)


@pytest.mark.parametrize("scene", [ROTATED, PADDED, MASKED, INT8], ids=lambda scene: scene.name)
def test_a_client_sends_another_vector_of_the_same_kind_in_each_epoch(scene):
    """So that what the server keeps of it from an epoch before its own round does not cancel, or double, what it sends."""
    plan = plan_of(scene)
    for canary in set(CANARIES) - {"not finite"}:
        held = holdings(scene, plan, 7, canary, present=True)
        of_epochs = [held(7, 1 + epoch * scene.rounds_per_epoch).x[0] for epoch in range(scene.epochs)]
        assert [l2_norm(vector) for vector in of_epochs] == pytest.approx(
            [l2_norm(of_epochs[0])] * 2, rel=0.05
        )
        lengths = np.prod([l2_norm(vector) for vector in of_epochs])
        assert abs(float(of_epochs[0] @ of_epochs[1])) < 0.3 * lengths
        companions = [
            who for who in range(12) if who != 7 and np.array_equal(held(who, 1).x[0], of_epochs[0])
        ]
        assert companions
        assert all(np.array_equal(held(who, 4).x[0], of_epochs[1]) for who in companions)


def test_a_clip_that_is_missing_on_the_path_of_every_run_is_found():
    """A trained model is bounded less its start, in one sweep: the audit drives that, and not an update by itself."""

    def unclipped(update, *, start=None, bounds, **more):
        return PRIVATIZE(
            update, start=start, bounds=bounds if start is None else replace(bounds, l2_norm=1e6), **more
        )

    with patched((client.app, "privatize", unclipped)):
        assert WHOLE_VECTOR in rows_with(coupled_rows(MASKED), Verdict.refuted)


def test_another_seed_plays_other_secrets():
    first, second = (coupled.play_pair(replace(ROTATED, epochs=1), 0, seed=seed) for seed in (0, 1))
    assert not np.array_equal(first.inside.models[-1], second.inside.models[-1])
