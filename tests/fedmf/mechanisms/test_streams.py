"""Streams at work: the same noise bit for bit in place, in blocks and saved; what a step takes; how far float64 moves its rows."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from fedmf.errors import SettingError
from fedmf.mechanisms import FAMILIES, StreamState, design, momentum, prefix_sum
from fedmf.mechanisms.noise import advanced, next_noise
from fedmf.mechanisms.streams.dense import DenseStream
from fedmf.mechanisms.streams.protocol import feed
from fedmf.mechanisms.streams.recurrence import RecurrentStream, strategy_form
from fedmf.mechanisms.streams.toeplitz import ToeplitzStream
from fedmf.mechanisms.streams.tree import height
from fedmf.normals import REACH, STEP
from fedmf.randomness import SecretKey

KEY = SecretKey.reproducible(6)
ROUNDS, DIMENSION = 7, 40_000  # more than two blocks of normals


def parts(row):
    """Mean and fresh row, (2, d)."""
    return np.stack([row.mean, row.fresh])


def rows_of(stream, state, *, donate=False):
    """The rows of all steps that are left."""
    rows = []
    while state.step < stream.rounds:
        row, state = next_noise(stream, state, KEY, dimension=DIMENSION, donate=donate)
        rows.append(parts(row))
    return rows


def peak_of_a_step(stream, state, dimension):
    """The most memory that a step in place takes, in bytes, once it has run before."""
    _, state = next_noise(stream, state, KEY, dimension=dimension, donate=True)
    tracemalloc.start()
    try:
        next_noise(stream, state, KEY, dimension=dimension, donate=True)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_rows_drawn_again_take_the_memory_of_four():
    """Float64: the mean, the fresh row, the one drawn again and the one before it. Kept ones would be six more."""
    stream, dimension = design("honaker_full", prefix_sum(ROUNDS)).stream, 1 << 18
    peak = peak_of_a_step(stream, replace(stream.init(dimension), step=ROUNDS - 2), dimension)
    assert peak < 5 * 8 * dimension  # with scratch of the normals and of the sum


def test_going_forward_without_rows_draws_nothing(monkeypatch):
    stream = design("honaker_full", prefix_sum(ROUNDS)).stream
    expected = rows_of(stream, stream.init(DIMENSION))
    with monkeypatch.context() as patched:
        patched.delattr("fedmf.mechanisms.noise.gaussian_row")
        state = advanced(stream, stream.init(DIMENSION), KEY, 5, dimension=DIMENSION)
    np.testing.assert_array_equal(rows_of(stream, state), expected[5:])


def test_a_step_in_place_takes_the_memory_of_its_mean_and_its_fresh_row():
    """Both float64, as long as the model; anything else stays in blocks."""
    stream, dimension = design("optimal", prefix_sum(12), buffers=3).stream, 1 << 20
    assert peak_of_a_step(stream, stream.init(dimension), dimension) < 2.5 * 8 * dimension


def test_noise_in_place_and_from_a_saved_state_has_the_bits_of_noise_from_copies():
    """In more than one block of columns, and no whole number of them."""
    stream = design("optimal", prefix_sum(12), buffers=3).stream
    expected = rows_of(stream, stream.init(DIMENSION))
    np.testing.assert_array_equal(rows_of(stream, stream.init(DIMENSION), donate=True), expected)
    state = stream.init(DIMENSION)
    for _ in range(5):
        _, state = next_noise(stream, state, KEY, dimension=DIMENSION, donate=True)
    saved = StreamState(state.step, state.buffers.copy())
    np.testing.assert_array_equal(rows_of(stream, saved, donate=True), expected[5:])


@pytest.mark.parametrize("family", ["optimal", "sqrt_toeplitz", "binary_tree", "honaker_full"])
def test_a_round_is_drawn_again_until_its_state_was_handed_on_and_never_after(family):
    stream = design(family, prefix_sum(6)).stream
    state = stream.init(20)
    for _ in range(6):
        row, _ = next_noise(stream, state, KEY, dimension=20)
        again, after = next_noise(stream, state, KEY, dimension=20, donate=True)
        np.testing.assert_array_equal(parts(row), parts(again))
        for refused in (next_noise, lambda *given, dimension: advanced(*given, 6, dimension=dimension)):
            with pytest.raises(SettingError, match=f"of step {state.step} was handed on"):
                refused(stream, state, KEY, dimension=20)
        state = after


# rounding


Wide = np.longdouble
COLUMNS = 32
CASES = [(family, momentum(64, 0.9)) for family in FAMILIES]
CASES += [(family, prefix_sum(512)) for family in ("optimal", "blt", "sqrt_toeplitz", "binary_tree")]
IDS = [f"{family}-{workload.rounds}" for family, workload in CASES]
needs_a_wider_type = pytest.mark.skipif(
    np.finfo(Wide).eps > 2.0**-62, reason="no type of this machine is wider than float64"
)


def emitted(stream, fresh, between=lambda buffers: buffers):
    """The rows x (T, d), mean and own share added without rounding to float64; `between` steps buffers are changed."""
    state, rows = stream.init(COLUMNS), []
    for step in range(stream.rounds):
        mean, own_row, state = stream.next(fresh.__getitem__, state)
        rows.append(mean.astype(Wide) + Wide(stream.own(step)) * own_row.astype(Wide))
        state = replace(state, buffers=between(state.buffers))
    return np.stack(rows)


def encoded(stream, x):
    """C x, (T, d), by the way from x to z that suits the stream."""
    z = np.empty_like(x)
    if isinstance(stream, RecurrentStream):  # z = c x + lam . sigma, sigma' = F sigma + g x
        sigma = np.zeros((stream.buffers, COLUMNS), Wide)
        for step in range(stream.rounds):
            table = stream.table(step).astype(Wide)
            z[step] = (x[step] - table[-1, :-1] @ sigma) / table[-1, -1]
            sigma = table[:-1, :-1] @ sigma + np.outer(table[:-1, -1], z[step])
    elif isinstance(stream, ToeplitzStream):
        coefs = stream.tables.astype(Wide)
        for step in range(stream.rounds):
            count = min(step + 1, len(coefs))
            z[step] = coefs[:count] @ x[step - np.arange(count)]
    else:  # forward substitution in C^-1, or in what a tree emits for the identity
        matrix = stream.tables if isinstance(stream, DenseStream) else feed(stream, np.eye(stream.rounds))
        for step, row in enumerate(matrix.astype(Wide)):
            z[step] = (x[step] - row[:step] @ z[:step]) / row[step]
    return z


def moved(stream, between=lambda buffers: buffers):
    """The 2-norm over rounds and columns of what C makes of the rows, less the fresh rows."""
    drawn = np.random.default_rng(0).standard_normal((stream.rounds, COLUMNS))
    fresh = np.floor(drawn / STEP) + 0.5
    return float(np.linalg.norm((encoded(stream, emitted(stream, fresh, between)) - fresh) * STEP))


@needs_a_wider_type
@pytest.mark.parametrize(("family", "workload"), CASES, ids=IDS)
def test_rows_are_moved_by_no_more_than_the_bound_and_by_more_where_buffers_are_float32(family, workload):
    mechanism = design(family, workload)
    bound = mechanism.stream.rounding() * (np.sqrt(COLUMNS) + REACH)
    assert moved(mechanism.stream) <= bound
    if mechanism.stream.buffers:
        assert moved(mechanism.stream, lambda buffers: buffers.astype(np.float32).astype(np.float64)) > bound


@needs_a_wider_type
@pytest.mark.parametrize("family", ["optimal", "blt", "sqrt_blt"])
def test_the_bound_of_a_recurrence_is_that_of_every_rounding_carried_forward_one_by_one(family):
    """The slow twin: an error in a buffer after a step is carried on by F, and later rounds see it by lam; their 2-norm counts.

    The bounds are far above what happens, as roundings hardly ever agree, so that too small a bound shows here only.
    """
    mechanism = design(family, momentum(24, 0.9))
    stream, kappa = mechanism.stream, mechanism.sensitivity
    form, r = strategy_form(stream.tables), stream.buffers
    at = [min(step, len(form.c) - 1) for step in range(24)]
    by_fresh, expected = np.zeros((r, 24)), 0.0  # how the buffers depend on the fresh rows
    for step in range(24):
        table = stream.table(step)
        spreads = np.append(np.linalg.norm(by_fresh, axis=1), 1.0)
        for row in range(r + 1):
            size = (r + 1 + 4) * 2.0**-53 * float(np.abs(table[row]) @ spreads)
            if row == r:  # of the mean: as an error of the row emitted
                expected += kappa * size
                continue
            error, seen = np.eye(r)[row], []
            for later in range(step + 1, 24):
                seen.append(form.lam[at[later]] @ error)
                error = form.F[at[later]] @ error
            expected += size * float(np.linalg.norm(seen))
        by_fresh = table[:r, :r] @ by_fresh
        by_fresh[:, step] += table[:r, r]
    assert stream.rounding() == pytest.approx(expected, rel=1e-9)


@needs_a_wider_type
@pytest.mark.parametrize("family", ["binary_tree", "honaker_online"])
@pytest.mark.parametrize("rounds", [1, 7, 64, 100])
def test_the_bound_of_a_tree_covers_every_rounding_carried_up_one_by_one(family, rounds):
    """A node's estimate is off by its own rounding and by that of all lower ones that it is the sum of."""
    mechanism = design(family, prefix_sum(rounds))
    stream, kappa = mechanism.stream, mechanism.sensitivity
    off, squares, means = np.zeros(stream.buffers), 0.0, 0.0
    for step in range(rounds):
        top = height(step)
        (of_estimate, of_mean), of_fresh = stream.maps(top)
        one = (top + 2) * 2.0**-53
        squares += (float(np.abs(of_mean) @ off[:top]) / stream.own(step)) ** 2
        means += kappa * (one + 4 * 2.0**-53) * float(np.abs(of_mean).sum())
        rounded = one * (float(np.abs(of_estimate).sum()) + float(np.linalg.norm(of_fresh[0])))
        off[top] = off[:top].sum() + rounded
    carried = np.sqrt(squares)
    assert means + carried <= stream.rounding()
    alone = replace(stream)
    vars(alone)["sensitivity"] = 0.0  # leaves what is carried
    assert carried <= alone.rounding() <= 60 * max(carried, 1e-15)
