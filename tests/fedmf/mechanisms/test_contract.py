"""What every family promises, over sizes with and without powers of two and three kinds of workload."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from fedmf.errors import SettingError
from fedmf.mechanisms import (
    FAMILIES,
    Family,
    check_stream,
    design,
    lower_bound,
    momentum,
    prefix_sum,
    relative_gap,
    workload,
)
from fedmf.mechanisms.family import resolve
from fedmf.mechanisms.schedules import rates
from fedmf.mechanisms.streams.protocol import StreamState, blocks, feed
from fedmf.mechanisms.streams.toeplitz import ToeplitzStream

SIZES = (1, 2, 7, 32)
WORKLOADS = {
    "prefix_sum": prefix_sum,
    "momentum": lambda rounds: momentum(rounds, 0.9),
    "cooldown": lambda rounds: momentum(rounds, 0.7, rates("cooldown", rounds)),
}
everywhere = pytest.mark.parametrize(
    ("family", "kind", "rounds"),
    [(family, kind, rounds) for family in FAMILIES for kind in WORKLOADS for rounds in SIZES],
)
every_family = pytest.mark.parametrize("family", FAMILIES)


@cache
def designed(family, kind, rounds):
    return design(family, WORKLOADS[kind](rounds))


@everywhere
def test_every_stream_keeps_the_promises_of_a_stream(family, kind, rounds):
    stream = designed(family, kind, rounds).stream
    check_stream(stream)
    with pytest.raises(SettingError, match=rf"this stream needs {stream.buffers} rows of float64"):
        stream.next(np.zeros, StreamState(0, np.zeros((stream.buffers + 1, 2))))
    with pytest.raises(SettingError, match="dimension"):
        stream.init(0)


@every_family
def test_a_mean_depends_on_earlier_fresh_rows_only(family):
    stream = designed(family, "momentum", 7).stream
    fresh = np.random.default_rng(0).standard_normal((7, 3))
    changed = fresh.copy()
    changed[4:] += 1
    own = np.array([[stream.own(step)] for step in range(7)])
    one, other = (feed(stream, rows) - own * rows for rows in (fresh, changed))
    np.testing.assert_array_equal(one[:4], other[:4])
    np.testing.assert_allclose(one[4], other[4], atol=1e-12)
    assert (abs(one[5] - other[5]) > 1e-6).any() == (family != "independent")


class Late(ToeplitzStream):
    """Adds the row of the step before twice."""

    def _step(self, step, fresh, buffers, mean, draw):
        super()._step(step, fresh, buffers, mean, draw)
        mean += draw(step - 1) if step else 0


class Impure(ToeplitzStream):
    """Writes into the state that it was given."""

    def next(self, draw, state, *, donate=False):
        return super().next(draw, state, donate=True)


class Modest(ToeplitzStream):
    """Claims half of its sensitivity."""

    @property
    def sensitivity(self):
        return super().sensitivity / 2


class Narrow(ToeplitzStream):
    """Has no noise of earlier rows beyond 1000 coordinates."""

    def _step(self, step, fresh, buffers, mean, draw):
        super()._step(step, fresh, buffers, mean, draw)
        mean[1000:] = 0


class Exact(ToeplitzStream):
    """Claims that nothing is rounded."""

    def rounding(self):
        return 0.0


class Endless(ToeplitzStream):
    """Starts again after its last round."""

    def next(self, draw, state, *, donate=False):
        return super().next(draw, replace(state, step=state.step % self.rounds), donate=donate)


@pytest.mark.parametrize("kind", [Late, Impure, Modest, Narrow, Exact, Endless])
def test_the_check_of_streams_finds_what_breaks_a_promise(kind):
    coefs = np.array([1.0, 0.5, 0.25])
    check_stream(ToeplitzStream(5, coefs))
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check_stream(kind(5, coefs))


@everywhere
def test_sensitivity_and_errors_are_those_of_the_dense_matrices_above_the_lower_bound(family, kind, rounds):
    mechanism = designed(family, kind, rounds)
    (B, C), A = mechanism.materialize(), workload.materialize(mechanism.workload)
    assert B.shape == C.T.shape
    np.testing.assert_allclose(B @ C, A, atol=1e-10 * A.max())
    # 1e-12: a backward recursion of squares against a dense norm, both in float64.
    assert mechanism.sensitivity == pytest.approx(np.linalg.norm(C, axis=0).max(), rel=1e-12)
    assert mechanism.root_loss >= lower_bound(mechanism.workload)
    assert relative_gap(mechanism) >= 0
    row_norms = np.linalg.norm(B, axis=1)
    np.testing.assert_allclose(mechanism.per_round_error, mechanism.sensitivity * row_norms, rtol=1e-10)
    assert mechanism.root_loss == pytest.approx(mechanism.sensitivity * np.linalg.norm(B))
    assert mechanism.rms_error == pytest.approx(mechanism.root_loss / np.sqrt(rounds))
    assert mechanism.max_error == pytest.approx(mechanism.sensitivity * row_norms.max())


@everywhere
def test_what_is_emitted_has_the_law_of_the_noising_matrix_which_inverts_the_encoder(family, kind, rounds):
    mechanism = designed(family, kind, rounds)
    emitted, noising = feed(mechanism.stream, np.eye(rounds)), mechanism.stream.materialize_noising()
    covariance = noising @ noising.T
    np.testing.assert_allclose(emitted @ emitted.T, covariance, rtol=0, atol=1e-12 * covariance.max())
    C = mechanism.stream.materialize_strategy()
    np.testing.assert_allclose(noising @ C, np.eye(rounds), atol=1e-10 * max(1, np.abs(C).max() ** 2))


@every_family
def test_blocks_of_coordinates_do_not_mix(family, monkeypatch):
    mechanism = designed(family, "prefix_sum", 7)
    fresh = np.random.default_rng(0).standard_normal((7, 1500))
    whole = feed(mechanism.stream, fresh)
    monkeypatch.setattr("fedmf.mechanisms.streams.protocol.CACHED", 1)
    assert len(blocks(1500, 3)) == 3
    # Products of another shape may sum in another order.
    np.testing.assert_allclose(feed(mechanism.stream, fresh), whole, atol=1e-14)


@every_family
def test_fingerprint_names_what_the_stream_computes(family):
    mechanism = designed(family, "prefix_sum", 7)
    assert mechanism.fingerprint == design(family, prefix_sum(7)).fingerprint
    assert mechanism.fingerprint != designed(family, "prefix_sum", 3).fingerprint
    # A family that is not fitted to the workload streams the same for any: the same noise, whatever it is used for.
    other = designed(family, "momentum", 7)
    is_same = np.array_equal(*(one.stream.materialize_noising() for one in (mechanism, other)))
    assert (mechanism.fingerprint == other.fingerprint) == is_same


def test_the_tables_of_a_stream_are_frozen():
    mechanism = designed("optimal", "prefix_sum", 7)
    with pytest.raises(ValueError, match="read-only"):
        mechanism.stream.tables[:] = 1
    given = np.ones(2, np.float32)
    stream = ToeplitzStream(3, given)
    given *= 2  # a caller that keeps the fitted tables cannot change the stream
    assert (stream.tables == 1).all()


@pytest.mark.parametrize(
    ("family", "settings", "message"),
    [
        ("optimum", {}, "family is 'optimum'"),
        ("independent", {"buffers": 2}, "independent has no setting buffers; it has none"),
        ("optimal", {"rank": 2}, "optimal has no setting rank; it has buffers"),
        ("banded_toeplitz", {"buffers": -1}, "buffers is -1"),
        ("banded_toeplitz", {"buffers": 5}, "buffers is 5; it must be at most 4"),
        ("blt", {"buffers": 17}, "buffers is 17; it must be at most 16"),
        ("banded_low_rank", {"bands": 0}, "bands is 0"),
        ("banded_low_rank", {"rank": 6}, "rank is 6"),
        ("optimal", {"buffers": 2.5}, "buffers is 2.5"),
        ("optimal", {"buffers": 6}, "buffers is 6"),
        ("normalized_sqrt", {"buffers": 25}, "buffers is 25"),
    ],
)
def test_settings_out_of_range_are_refused(family, settings, message):
    with pytest.raises(SettingError, match=message):
        design(family, prefix_sum(5), **settings)


@pytest.mark.parametrize("family", ["optimal_dense", "honaker_full", "banded_low_rank"])
def test_dense_families_refuse_long_epochs(family):
    assert not resolve(family).suits(prefix_sum(5000))
    assert resolve("optimal").suits(prefix_sum(5000))
    with pytest.raises(SettingError, match="rounds is 5000"):
        design(family, prefix_sum(5000))


@every_family
def test_a_family_is_taken_by_name_or_by_value_and_knows_its_settings(family):
    known = resolve(family)
    by_value = design(known, prefix_sum(7), **dict.fromkeys(known.settings))
    assert by_value.fingerprint == designed(family, "prefix_sum", 7).fingerprint
    assert by_value.family == family


def test_names_that_are_taken_or_could_name_no_file_are_refused():
    with pytest.raises(SettingError, match="called 'optimal', as one of this package's is"):
        design(replace(resolve("optimal"), most_rounds=8), prefix_sum(5))
    for name in ("", "two words", "../up", "mine:FAMILY", 3):
        with pytest.raises(SettingError, match=f"the name of the family is {name!r}; it must be letters"):
            Family(name, resolve("optimal").fit)
