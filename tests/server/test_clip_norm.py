"""The clip norm that adapts: the price of its counts, what one client moves, that each is released once, what is on disk, and the norm."""

from dataclasses import replace

import mpmath
import numpy as np
import pytest

from client.app import Task, zeros
from fedmf.accounting import Ledger
from fedmf.clip_norm import FURTHEST, AdaptiveClipping, open_count, seal_count
from fedmf.errors import RunDirectoryError, SettingError
from fedmf.normals import STEP
from fedmf.randomness import gaussian_row
from fedmf.sealing import unseal
from fedmf.updates import wire
from plans import (
    KEY,
    SGD,
    advance,
    begun,
    honest,
    kept_by,
    killed,
    random_vector,
    replying,
    run,
    same,
    small_plan,
    stated,
    tagged,
)
from server.checkpoint import COUNT_NOISE, NOISE_MULTIPLIER
from server.cohort import ReplyPolicy

PLAN = small_plan(epochs=3, clipping=AdaptiveClipping(0.5, rate=2.0, noise=1.0))
LARGE = {
    "keep_probability": 1,
    "clients": 4000,
    "cohort_size": 1000,
    "family": "independent",
    "noise_multiplier": None,
}
HUGE = 0x1234_5678_9ABC_DEF1
FORMS = (HUGE.to_bytes(8, "little"), HUGE.to_bytes(8, "big"), b"%d" % HUGE, b"%x" % HUGE)


@pytest.mark.parametrize(("epsilon", "price"), [(8, 17), (2, 57), (1, 106)])
def test_a_count_that_costs_one_percent_more_noise_has_the_published_noise(epsilon, price):
    """16 epochs, keep 1, delta 1e-5. The profile of the one Gaussian is evaluated to 40 digits (Balle, Wang 2018)."""
    plan = small_plan(**LARGE, epochs=16, epsilon=epsilon, clipping=AdaptiveClipping(0.5))
    assert round(plan.count_noise) == price
    alone = replace(plan, clipping=None).calibrated(plan.spent().epsilon, precision=plan.precision)
    assert plan.noise_multiplier / alone.noise_multiplier == pytest.approx(1.01, rel=1e-6)
    with mpmath.workdps(40):
        mu = mpmath.sqrt(
            sum(16 / mpmath.mpf(noise) ** 2 for noise in (plan.noise_multiplier, plan.count_noise))
        )
        one, other = mpmath.ncdf(mu / 2 - epsilon / mu), mpmath.ncdf(-mu / 2 - epsilon / mu)
        assert float(one - mpmath.exp(epsilon) * other) == pytest.approx(1e-5, rel=1e-6)


def test_plan_ledger_calibration_and_statement_contain_the_counts():
    bare, ledger = small_plan(epochs=3), Ledger((PLAN.epoch_event,) * 3)
    assert Ledger.from_json(ledger.to_json()) == ledger
    assert PLAN.spent_on(ledger).epsilon == PLAN.spent().epsilon > bare.spent().epsilon + 1
    given = small_plan(**LARGE, epsilon=2, clipping=AdaptiveClipping(0.5, noise=5.0))
    assert given.spent().epsilon == pytest.approx(2, rel=1e-6)
    said = stated(PLAN).paragraph()
    assert "noise of standard deviation 1; its cost is contained" in said
    assert "at most 1: where its vector is replaced by zero, so is its bit" in said
    assert stated(PLAN).to_dict()["clipping"] == {"quantile": 0.5, "rate": 2.0, "noise": 1.0}
    assert "count" not in Ledger((bare.epoch_event,)).to_json()  # as it was written before


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"clipping": AdaptiveClipping(0.5), **LARGE, "epsilon": 0.01}, "and an epoch asks 4000 clients"),
        (
            {"clipping": AdaptiveClipping(0.5, noise=1.3)},
            r"adapt_noise is 1\.3, and an epoch asks 12 clients",
        ),
        ({"clipping": AdaptiveClipping(0.5), "noise_multiplier": 1e9}, "and an epoch asks 12 clients"),
        ({"clipping": PLAN.clipping, "l2_norm": None, "noise_multiplier": 0}, "l2_norm is None"),
        (
            {"clipping": PLAN.clipping, **LARGE, "epsilon": 1},
            "adapt_noise is 1, with which the counts alone cost more than epsilon=1",
        ),
    ],
)
def test_a_count_that_says_nothing_and_a_norm_that_is_not_there_are_refused(changes, match):
    with pytest.raises(SettingError, match=match):
        small_plan(**changes)
    with pytest.raises(SettingError, match="adapt_noise is 1e-200; it must be at least"):
        AdaptiveClipping(0.5, noise=1e-200)


def answer(fields, message, bit=None, plan=PLAN):
    """Answer with an update of length 0.375, 0.625, ..; client 0 with zeros and `bit` where that is given."""
    number = int(fields[wire.CLIENT])
    if number == 0 and bit is not None:
        return replying(message, tagged(fields, message, bytes(4 * kept_by(fields)) + bytes([bit])))
    return honest(fields, message, random_vector(50, (number + 1.5) / 4, number), plan)


def test_one_client_moves_a_count_by_at_most_one_whatever_byte_it_sends():
    """With one key all noise is the same: a byte taken as a number would show. One that cannot train sends a 0."""
    run(answer, PLAN, 4, commit=(honestly := []).append)
    for bit, moves in ((1, 0), (0, 1), (2, 1), (100, 1), (255, 1)):
        run(
            lambda fields, message, bit=bit: answer(fields, message, bit),
            PLAN,
            4,
            commit=(others := []).append,
        )
        assert honestly[-1].count.noisy - others[-1].count.noisy == pytest.approx(moves, abs=1e-9)
    assert PLAN.client_plan.sends_bit
    assert zeros(Task(wire.Turn(1, 0, 0, "3"), KEY), PLAN.client_plan)[-1 - wire.TAG_BYTES] == 0


def test_a_count_is_released_once_an_epoch_with_the_noise_of_its_key_and_the_norm_follows_it():
    """Slow twin from the equations; then the same with every round asked for twice: no bit counts twice, no other noise is drawn."""
    strategy, _ = run(answer, PLAN, 12, commit=(released := []).append)
    key, norm, asked = KEY, 1.0, []
    for epoch in range(3):
        *before, last = [one.count.noisy for one in released[4 * epoch : 4 * epoch + 4]]
        true = sum((number + 1.5) / 4 <= norm for number in range(12))
        assert before == [None] * 3
        assert last == pytest.approx(true + gaussian_row(key.derive("clip count"), 0, 1)[0] * STEP, abs=1e-9)
        norm, key = norm * np.exp(-2.0 * (np.clip(last / 12, 0, 1) - 0.5)), key.ratchet()
    assert strategy.state.scale.tolist() == [pytest.approx(1 / norm, rel=1e-5)]

    def late(fields, message):
        asked.append(place := (fields[wire.EPOCH], fields[wire.STEP]))
        return None if asked.count(place) == 1 else answer(fields, message)

    run(late, PLAN, 12, replies=ReplyPolicy(min_replies=3), commit=(again := []).append)
    assert [one.count.noisy for one in again] == [one.count.noisy for one in released]


def test_a_norm_a_hundred_times_too_large_or_small_is_found_and_none_leaves_its_limits():
    for l2_norm in (100.0, 0.01):
        plan = small_plan(epochs=12, clipping=PLAN.clipping, l2_norm=l2_norm)
        strategy, _ = run(lambda fields, message, plan=plan: answer(fields, message, plan=plan), plan, 48)
        assert 0.8 < l2_norm / strategy.state.scale[0] < 4  # half of the clients are within 1.75
    far = AdaptiveClipping(0.5, 1e9)
    assert [far.moved(None, *given)[0] for given in ((0.0, 1), (9.0, 1), (3.0, 0))] == [
        1 / FURTHEST,
        FURTHEST,
        1.0,
    ]


@pytest.mark.parametrize("every", [1, 3, 100])
def test_killed_after_any_round_a_run_has_its_count_and_no_file_holds_it_unsealed(tmp_path, every):
    """Two attempts at a round seal two counts: under one keystream their difference would show, so each box is new."""
    checkpoint, state = begun(PLAN, tmp_path / "c", every=every)
    for number in range(1, 12):
        state = advance(PLAN, state, checkpoint, short=HUGE if number % 4 == 1 else 0)
        found = killed(checkpoint, tmp_path / f"k{number}")
        files = [file.read_bytes() for file in found.folder.rglob("*")]
        assert not any(form in file for file in files for form in FORMS)
        again, _ = found.restore(PLAN, SGD)
        same(again, state)
        assert again.secrets.short == state.secrets.short == (HUGE if number % 4 else 0)
    sealed = checkpoint.record.count(1).sealed
    again = seal_count(HUGE, KEY, 0)
    assert open_count(sealed, KEY, 0) == open_count(again, KEY, 0) == HUGE
    assert not unseal(KEY.reveal(), {"count": bytes.fromhex(sealed)}, b"0 ")  # a key of its own
    nonce, tag = 24, 32  # hexadecimal digits
    assert sealed[nonce:-tag] != again[nonce:-tag]
    for key, step in ((KEY, 1), (KEY.ratchet(), 0)):
        with pytest.raises(RunDirectoryError, match="is not the run's"):
            open_count(sealed, key, step)


@pytest.mark.parametrize("name", [COUNT_NOISE, NOISE_MULTIPLIER])
def test_a_session_adds_the_noise_that_the_run_began_with_where_it_would_be_almost_that(tmp_path, name):
    """Both are calibrated, so that another version of the libraries may end a digit away; epsilon is of the first."""
    checkpoint, state = begun(PLAN, tmp_path / "c")
    for began, kept in ((1 + 1e-7, 1 + 1e-7), (1.01, 1.0)):
        checkpoint = replace(checkpoint, calculated={name: began})
        checkpoint.begin(state)
        plan = checkpoint.with_kept_noise(PLAN)
        assert {COUNT_NOISE: plan.count_noise, NOISE_MULTIPLIER: plan.noise_multiplier}[name] == kept
