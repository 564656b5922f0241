"""Dense streams that keep no fresh rows: the same noise, bit for bit, from rows that are drawn again."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from fedmf.errors import SettingError
from fedmf.mechanisms import design, prefix_sum
from fedmf.mechanisms.noise import NoiseRow, advanced, next_noise
from fedmf.mechanisms.streams import dense
from fedmf.mechanisms.streams.dense import DenseStream
from fedmf.mechanisms.streams.protocol import StreamState
from fedmf.normals import STEP
from fedmf.randomness import SecretKey, gaussian_row
from plans import small_plan
from server.state import Secrets, first_state as first_server_state, make_release, secrets_at

KEY = SecretKey.reproducible(6)
ROUNDS, DIMENSION = 7, 40_000  # more than two blocks of normals
DENSE = ("honaker_full", "optimal_dense")


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the seven rounds of these tests be too many to keep."""
    monkeypatch.setattr(dense, "KEPT_BYTES", 8 * (ROUNDS - 1) * (DIMENSION - 1))


def parts(row: NoiseRow) -> np.ndarray:
    """Mean and fresh row, (2, d)."""
    return np.stack([row.mean, row.fresh])


def rows_of(stream: DenseStream, state: StreamState, *, donate: bool = False) -> list[np.ndarray]:
    rows = []
    while state.step < stream.rounds:
        row, state = next_noise(stream, state, KEY, dimension=DIMENSION, donate=donate)
        rows.append(parts(row))
    return rows


def kept_rows(stream: DenseStream) -> list[np.ndarray]:
    """Noise rows from a state that holds all fresh rows."""
    return rows_of(stream, StreamState(0, np.zeros((ROUNDS - 1, DIMENSION))))


@pytest.mark.parametrize("family", DENSE)
@pytest.mark.parametrize("donate", [False, True])
def test_rows_drawn_again_give_the_bits_of_rows_kept(family: str, donate: bool, short: None) -> None:
    stream = design(family, prefix_sum(ROUNDS)).stream
    state = stream.init(DIMENSION)
    assert state.buffers.shape == (0, DIMENSION)
    np.testing.assert_array_equal(rows_of(stream, state, donate=donate), kept_rows(stream))


@pytest.mark.parametrize("family", DENSE)
def test_rows_drawn_again_are_the_dense_matrix_times_the_fresh_rows(family: str, short: None) -> None:
    stream = design(family, prefix_sum(ROUNDS)).stream
    fresh = np.stack([gaussian_row(KEY, number, DIMENSION) for number in range(ROUNDS)])
    own = [stream.own(step) for step in range(ROUNDS)]
    rows = [
        mean + share * row
        for share, (mean, row) in zip(own, rows_of(stream, stream.init(DIMENSION)), strict=True)
    ]
    # A few roundings of sums of seven numbers that are below ten.
    np.testing.assert_allclose(
        STEP * np.stack(rows), STEP * (stream.materialize_noising() @ fresh), atol=1e-14
    )


def test_rows_are_kept_up_to_the_limit_and_not_beyond_it(short: None) -> None:
    stream = design("honaker_full", prefix_sum(ROUNDS)).stream
    assert len(stream.init(DIMENSION - 1).buffers) == ROUNDS - 1
    assert len(stream.init(DIMENSION).buffers) == 0
    assert dense.KEPT_BYTES < 1 << 21


def test_a_state_that_keeps_no_rows_goes_on_from_a_file_at_any_step(short: None) -> None:
    stream = design("optimal_dense", prefix_sum(ROUNDS)).stream
    state, rows = stream.init(DIMENSION), []
    for _ in range(ROUNDS):
        state = StreamState.from_arrays(state.to_arrays())
        row, state = next_noise(stream, state, KEY, dimension=DIMENSION, donate=True)
        rows.append(parts(row))
    np.testing.assert_array_equal(rows, kept_rows(stream))
    with pytest.raises(SettingError, match="step is 7; an epoch of this stream has steps 0 to 6"):
        next_noise(stream, state, KEY, dimension=DIMENSION)


def test_a_state_that_keeps_no_rows_can_be_drawn_from_again_until_it_is_handed_on(short: None) -> None:
    stream = design("honaker_full", prefix_sum(ROUNDS)).stream
    first = stream.init(DIMENSION)
    row, second = next_noise(stream, first, KEY, dimension=DIMENSION)
    later, _ = next_noise(stream, second, KEY, dimension=DIMENSION, donate=True)
    again, _ = next_noise(stream, first, KEY, dimension=DIMENSION)
    np.testing.assert_array_equal(parts(again), parts(row))
    for refused in (next_noise, lambda *given, dimension: advanced(*given, 4, dimension=dimension)):
        with pytest.raises(SettingError, match="of step 1 was handed on"):
            refused(stream, second, KEY, dimension=DIMENSION)
    assert (row.fresh != later.fresh).any()


def test_going_forward_without_rows_kept_draws_nothing(short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = design("honaker_full", prefix_sum(ROUNDS)).stream
    expected = kept_rows(stream)
    with monkeypatch.context() as patched:
        patched.delattr("fedmf.mechanisms.noise.gaussian_row")
        state = advanced(stream, stream.init(DIMENSION), KEY, 5, dimension=DIMENSION)
    np.testing.assert_array_equal(rows_of(stream, state), expected[5:])


def test_rows_that_are_not_kept_take_the_memory_of_four(short: None) -> None:
    """Float64: the mean, the fresh row, the one drawn again and the one before it. Kept ones would be six more."""
    stream, dimension = design("honaker_full", prefix_sum(ROUNDS)).stream, 1 << 18
    state = replace(stream.init(dimension), step=ROUNDS - 1)
    next_noise(stream, state, KEY, dimension=dimension)
    tracemalloc.start()
    try:
        next_noise(stream, state, KEY, dimension=dimension)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5 * 8 * dimension  # with scratch of the normals and of the sum


@pytest.mark.parametrize("family", DENSE)
def test_a_server_that_lost_its_stream_releases_the_same_whether_rows_are_kept(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Secrets of any age, also those that a state with rows kept has left, go on to the same release."""
    plan = small_plan(family=family, dimension=300, rotation="identity")
    zero = np.zeros(plan.rotation.padded)
    start = replace(first_server_state(plan, np.zeros(300, np.float32), KEY), round=6)
    releases = []
    for limit, older in ((1 << 30, Secrets(0, KEY, None)), (0, Secrets(0, KEY, None))):
        monkeypatch.setattr(dense, "KEPT_BYTES", limit)
        releases.append(make_release(plan, replace(start, secrets=older), zero.copy(), [])[0].noisy_sum)
        begun = secrets_at(plan, older, 5)
        assert begun is not None
        assert begun.stream is not None
        assert len(begun.stream.buffers) == (3 if limit else 0)
        monkeypatch.setattr(dense, "KEPT_BYTES", 0)
        releases.append(make_release(plan, replace(start, secrets=begun), zero.copy(), [])[0].noisy_sum)
    assert np.linalg.norm(releases[0]) > 1
    for again in releases[1:]:
        np.testing.assert_array_equal(releases[0], again)
