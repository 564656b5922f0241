"""The command: what it prints and leaves, its exit codes; and attacks on the low bits of what is released."""

import json
import logging
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import experiments.audit.__main__ as command
import experiments.audit.attack as attacks
from experiments.audit.__main__ import AS_SHIPPED, AuditSettings, document_of, found_in, print_text
from experiments.audit.sabotage import CONTROLS, HALF_NOISE, patched
from experiments.audit.scene import Scene, cohorts, plan_of
from experiments.cli.command import guard
from experiments.settings.compose import compose
from faults import ESCAPES
from fedmf.audit import Finding
from fedmf.counting import continual_counter
from fedmf.errors import RunDirectoryError, SettingError
from fedmf.mechanisms import FAMILIES
from fedmf.mechanisms.noise import NoiseRow, released
from fedmf.normals import STEP
from fedmf.randomness import SecretKey
from plans import random_vector, small_plan
from server import strategy
from server.state import begin_epoch, first_state, make_release, secrets_at

pytestmark = pytest.mark.long

FINE = Finding("residual variance", 0.5, 1e-7, False, "p")
REFUTES = Finding("residual variance", 0.0, 1e-7, True, "p")
UNSURE = Finding("residual variance", 0.5, 1e-7, False, "p", is_inconclusive=True)


@pytest.fixture
def call(tmp_path, capsys, monkeypatch):
    """Run the command in this process with two small scenes, of one client's influence and of noise and masks, and no attacks.

    Return its exit code and document.
    """
    small = {"cohort_size": 2, "rounds_per_epoch": 2, "runs": 4}
    kinds = [((replace(scenes[at], **small),), find) for at, (scenes, find) in enumerate(command.KINDS)]
    monkeypatch.setattr(command, "KINDS", kinds)
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


def quarter_noise(plan, *given, **more):
    return make_release(replace(plan, noise_multiplier=plan.noise_multiplier / 4), *given, **more)


def test_both_attacks_find_quartered_noise_and_nothing_in_the_product():
    """Each finds it in 49 of 50 audits or more: noise that is only halved needs the sizes of the command."""
    small = {"Scene": partial(Scene, cohort_size=1, rounds_per_epoch=2), "THRESHOLD": 0.7, "CANARIES": 1024}
    small |= {"GUESSES": 164, "many_runs": partial(attacks.many_runs, runs=140)}
    with patched(*((attacks, name, value) for name, value in small.items())):
        assert [one.refutes for one in attacks.attack_findings("optimal", 0)] == [False, False]
        with patched((strategy, "make_release", quarter_noise)):
            assert [one.refutes for one in attacks.attack_findings("optimal", 0)] == [True, True]


@pytest.mark.slow
def test_both_attacks_find_halved_noise_at_the_sizes_of_the_command():
    with HALF_NOISE.patches():
        assert [one.refutes for one in attacks.attack_findings("optimal", 0)] == [True, True]


# low bits

# Who knows all other clients must not tell whether a client took part. Each statistic is standard normal for an attacker who
# guesses the known sum wrong, and for one who guesses it right where the noise is private to its last bit. On rows of float32 a
# right guess leaves the lattice on which they were drawn, many deviations away. Both worlds are tried: the client takes part, or
# does not; the guess is right or wrong.


D = 1 << 15
FLOAT32_ROWS = next(one for one in ESCAPES if one.name == "float32 rows").patches
FALSE_ALARM, FOUND = 5, 30  # standard deviations
worlds = pytest.mark.parametrize("takes_part", [True, False])
broken_or_not = pytest.mark.parametrize("patches", [nullcontext, FLOAT32_ROWS], ids=["whole", "float32"])


def angle_statistic(noise):
    """Return how near the angles of pairs lie to the 2^24 that there were: `noise` (d,) in standard deviations."""
    x, y = noise.reshape(2, -1)
    phase = np.arctan2(y, x) / (2 * np.pi) * 2**24 - 0.5
    return float(np.cos(2 * np.pi * phase).sum() / np.sqrt(len(phase) / 2))


def grid_statistic(noise, total, sigma):
    """Return how near `noise` (d,) lies to numbers of float32, as far as rounding of the release lets it be seen.

    Mironov 2012: a sum S + sigma z of a float z is found among the numbers that such a z can make of S.
    """
    grid = np.spacing(np.abs(noise).astype(np.float32)).astype(np.float64)
    rounding = np.spacing(np.abs(total + sigma * noise).astype(np.float32)).astype(np.float64)
    weight = np.sinc(rounding / (sigma * grid))
    return float((weight * np.cos(2 * np.pi * noise / grid)).sum() / np.sqrt((weight**2).sum() / 2))


def check(statistic, sums, takes_part, patches):
    """Compare both guesses with the limits: on broken noise the right one must be found, the wrong one is less right."""
    found, other = (abs(statistic(sums[guess])) for guess in (takes_part, not takes_part))
    if patches is nullcontext:
        assert max(found, other) < FALSE_ALARM
    else:
        assert found > max(FOUND, 2 * other)


@broken_or_not
@worlds
def test_one_release_tells_nothing_by_its_low_bits(takes_part, patches):
    """The releases of three rounds, times C, are the fresh row of the third: known sums of zero but for its own."""
    of_rows = {"rotation": "identity", "keep_probability": 1, "noise_multiplier": 1.9, "family": "optimal"}
    plan = small_plan(dimension=D, **of_rows)
    state = begin_epoch(plan, first_state(plan, np.zeros(D, np.float32), SecretKey.generate()))
    others = sum(random_vector(D, 1.0, k).astype(float) for k in range(2))
    sums, sigma = (others, others + random_vector(D, 1.0, 9)), plan.sigma_in(0)
    encoder = plan.factorization.epochs[0].stream.materialize_strategy()
    rows = []
    with patches():
        for step in range(3):
            total = np.zeros(D) if step == 1 else sums[takes_part].copy()
            release, secrets = make_release(plan, state, total, [])
            state = replace(state, round=step + 1, secrets=secrets_at(plan, secrets, step + 1))
            rows.append(release.noisy_sum.astype(float))
    scale = sigma * plan.factorization.epochs[0].stream.own(0)
    check(lambda known: angle_statistic((rows[0] - known) / scale), sums, takes_part, patches)
    check(lambda known: grid_statistic((rows[0] - known) / scale, known, scale), sums, takes_part, patches)
    rows[0] -= sums[takes_part]
    fresh = lambda known: encoder[2, :3] @ np.array([rows[0], rows[1], rows[2] - known]) / sigma  # noqa: E731
    check(lambda known: angle_statistic(fresh(known)), sums, takes_part, patches)


@broken_or_not
def test_a_counter_does_not_tell_one_number_by_its_low_bits(patches):
    """Epsilon 0.01, one number of 0 or 1, one release: read off in 300 of 300 before, now as often as a coin."""
    counter, rng = continual_counter(8, epsilon=0.01, delta=1e-9), np.random.default_rng(0)
    scale = counter.noise_multiplier * counter.factorization.sensitivity * counter.factorization.stream.own(0)
    right = 0
    with patches():
        for _ in range(300):
            truth = int(rng.integers(2))
            out, _ = counter.feed(truth, counter.start(key=SecretKey.generate()))
            noise = (out[0] - np.array([0.0, 1.0])) / scale
            distance = np.abs(noise / np.spacing(np.abs(noise).astype(np.float32)) % 1 - 0.5)
            right += int(distance.argmax()) == truth
    assert right < 200 if patches is nullcontext else right > 295


@pytest.mark.parametrize("own", [1.0, 1.37, 0.73])
def test_every_half_integer_moves_a_release_by_one_step_of_the_lattice(own):
    """Were the fresh number multiplied or added before rounding, points would be left out or meet (730 for 1000)."""
    row = NoiseRow(np.full(2000, 2.0**44 * 0.3), own, np.arange(2000) + 0.5)
    for total in (0.0, 1e-13, 0.5, 3.456, -10.0):
        places = released(np.full(2000, total), row, 1.7, np.float64) / (1.7 * own * STEP)
        # A place below 2^48 is divided again to within a sixteenth of a step.
        np.testing.assert_allclose(np.diff(places), 1.0, atol=0.13)
        np.testing.assert_allclose(places % 1, 0.5, atol=0.13)
