"""What every family promises, over sizes with and without powers of two and three kinds of workload."""

import dataclasses
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from fedmf.errors import SettingError
from fedmf.mechanisms import (
    FAMILIES,
    Workload,
    check_stream,
    design,
    lower_bound,
    momentum,
    prefix_sum,
    relative_gap,
    workload,
)
from fedmf.mechanisms.schedules import rates
from fedmf.mechanisms.streams import tree
from fedmf.mechanisms.streams.dense import DenseStream
from fedmf.mechanisms.streams.protocol import StreamState, blocks, feed

SIZES = (1, 2, 3, 7, 64)
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


def fresh_rows(mechanism, dimension, seed=0):
    return np.random.default_rng(seed).standard_normal((mechanism.rounds, dimension))


@everywhere
def test_every_stream_keeps_the_promises_of_a_stream(family, kind, rounds):
    check_stream(designed(family, kind, rounds).stream)


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


class Late(DenseStream):
    """Adds the fresh row of the step before twice."""

    def _step(self, step, fresh, buffers, updated, mean, draw):
        super()._step(step, fresh, buffers, updated, mean, draw)
        mean += buffers[step - 1] if step else 0


class Ahead(DenseStream):
    """Adds a fresh row of a later step."""

    def _step(self, step, fresh, buffers, updated, mean, draw):
        super()._step(step, fresh, buffers, updated, mean, draw)
        mean += draw(min(step + 1, self.rounds - 1))


class Impure(DenseStream):
    """Writes into the state that it was given."""

    def _step(self, step, fresh, buffers, updated, mean, draw):
        super()._step(step, fresh, buffers, updated, mean, draw)
        buffers[step - 1 :] += 1


class Modest(DenseStream):
    """Claims half of its sensitivity."""

    @property
    def sensitivity(self):
        return super().sensitivity / 2


class Endless(DenseStream):
    """Starts again after its last round."""

    def next(self, draw, state, *, donate=False):
        return super().next(draw, replace(state, step=state.step % self.rounds), donate=donate)


@pytest.mark.parametrize("kind", [Late, Ahead, Impure, Modest, Endless])
def test_the_check_of_streams_finds_what_breaks_a_promise(kind):
    tables = np.linalg.inv(np.tril(np.ones((5, 5))) + np.eye(5))
    check_stream(DenseStream(5, tables))
    with pytest.raises(AssertionError):
        check_stream(kind(5, tables))


@everywhere
def test_decoder_times_encoder_is_the_workload(family, kind, rounds):
    mechanism = designed(family, kind, rounds)
    B, C = mechanism.materialize()
    A = workload.materialize(mechanism.workload)
    assert B.shape == C.T.shape
    np.testing.assert_allclose(B @ C, A, atol=1e-10 * A.max())


@everywhere
def test_sensitivity_and_errors_are_those_of_the_dense_matrices_above_the_lower_bound(family, kind, rounds):
    mechanism = designed(family, kind, rounds)
    B, C = mechanism.materialize()
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
    first = int if len(C) == rounds else tree.nodes_before  # row of C of a step
    assert not any(C[first(step) : first(step + 1), step + 1 :].any() for step in range(rounds))
    np.testing.assert_allclose(noising @ C, np.eye(rounds), atol=1e-10 * max(1, np.abs(C).max() ** 2))


@every_family
def test_steps_draw_every_fresh_row_once_and_in_order(family):
    stream, drawn = designed(family, "prefix_sum", 7).stream, []
    state = stream.init(2)
    for _ in range(7):
        _, _, state = stream.next(lambda number: drawn.append(number) or np.ones(2), state)
    assert drawn == list(range(7))


@every_family
def test_donation_reuses_the_float64_buffers(family):
    mechanism = designed(family, "prefix_sum", 7)
    stream, fresh = mechanism.stream, fresh_rows(mechanism, 5)
    state = stream.init(5)
    mean, _, following = stream.next(fresh.__getitem__, state, donate=True)
    assert following.buffers is state.buffers
    assert mean.dtype == state.buffers.dtype == np.float64
    assert state.buffers.shape == (stream.buffers, 5)


@every_family
def test_blocks_of_coordinates_do_not_mix(family, monkeypatch):
    mechanism = designed(family, "prefix_sum", 7)
    fresh = fresh_rows(mechanism, 1500)
    whole = feed(mechanism.stream, fresh)
    monkeypatch.setattr("fedmf.mechanisms.streams.protocol.CACHED", 1)
    assert len(blocks(1500, 3)) == 3
    # Products of another shape may sum in another order.
    np.testing.assert_allclose(feed(mechanism.stream, fresh), whole, atol=1e-14)


@every_family
def test_ill_fitting_input_is_refused(family):
    mechanism = designed(family, "prefix_sum", 7)
    stream, fresh = mechanism.stream, fresh_rows(mechanism, 2)
    state = stream.init(2)
    for row, message in ((fresh[0].astype("f4"), "float32"), (fresh[:1], "shape"), (fresh[0, :1], "shape")):
        with pytest.raises(SettingError, match=message):
            stream.next(lambda number, row=row: row, state)
    for buffers in (np.zeros((stream.buffers + 1, 2)), state.buffers.astype("f4")):
        with pytest.raises(SettingError, match=rf"this stream needs {stream.buffers} rows of float64"):
            stream.next(fresh.__getitem__, StreamState(0, buffers))
    with pytest.raises(SettingError, match="dimension"):
        stream.init(0)


@every_family
def test_loss_follows_the_scale_of_the_workload(family):
    plain = designed(family, "prefix_sum", 7)
    doubled = design(family, Workload(7, 0.0, (2.0,) * 7))
    assert doubled.root_loss == pytest.approx(2 * plain.root_loss, rel=1e-5)
    assert doubled.sensitivity == pytest.approx(plain.sensitivity, rel=1e-5)


def whitened(samples, noising):
    """Sample covariance of the rows in coordinates where `noising noising^T` is the identity."""
    factor = np.linalg.cholesky(noising @ noising.T)
    return np.linalg.solve(factor, samples) @ np.linalg.solve(factor, samples).T / samples.shape[1]


@every_family
def test_emitted_rows_have_the_stated_covariance(family):
    """36 entries, each within 5 of its standard deviation sqrt(2/n): false alarm below 3e-5, seed fixed.

    The control, the same samples against the covariance of another family, must fall far outside.
    """
    samples, threshold = 40_000, 5 * np.sqrt(2 / 40_000)
    mechanism = designed(family, "prefix_sum", 7)
    other = designed("sqrt_toeplitz" if family == "independent" else "independent", "prefix_sum", 7)
    rows = feed(mechanism.stream, fresh_rows(mechanism, samples))
    own = np.abs(whitened(rows, mechanism.stream.materialize_noising()) - np.eye(7)).max()
    control = np.abs(whitened(rows, other.stream.materialize_noising()) - np.eye(7)).max()
    assert own < threshold < control / 3


@every_family
def test_fingerprint_names_what_the_stream_computes(family):
    mechanism = designed(family, "prefix_sum", 7)
    assert mechanism.fingerprint == design(family, prefix_sum(7)).fingerprint
    assert mechanism.fingerprint != designed(family, "prefix_sum", 3).fingerprint
    # A family that is not fitted to the workload streams the same for any: the same noise, whatever it is used for.
    is_fitted = family not in ("independent", "binary_tree", "honaker_online")
    assert (mechanism.fingerprint != designed(family, "momentum", 7).fingerprint) == is_fitted


def test_settings_are_frozen_in_all_twelve_families():
    assert len(FAMILIES) == 12
    mechanism = designed("optimal", "prefix_sum", 7)
    with pytest.raises(dataclasses.FrozenInstanceError):
        mechanism.stream = None
    with pytest.raises(dataclasses.FrozenInstanceError):
        mechanism.stream.rounds = 8
    with pytest.raises(ValueError, match="read-only"):
        mechanism.stream.tables[:] = 1
