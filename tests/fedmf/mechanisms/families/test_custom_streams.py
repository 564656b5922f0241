"""Families of one's own that bring a stream: what is claimed of it is held against what it emits."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from fedmf.errors import SettingError
from fedmf.mechanisms import (
    Family,
    Fitted,
    StreamState,
    design,
    prefix_sum,
    strategy_family,
)
from fedmf.mechanisms.streams.dense import DenseStream
from fedmf.mechanisms.streams.protocol import feed
from workloads import fading


def fit_dense(workload, claimed=None):
    noising = np.linalg.inv(fading(workload))
    sensitivity = np.linalg.norm(fading(workload), axis=0).max() if claimed is None else claimed
    return Fitted(sensitivity, np.zeros(workload.rounds), noising.astype("f4"))


def mine(stream=DenseStream, fit=fit_dense):
    return Family("mine", fit, stream)


class Halved(DenseStream):
    """Emits half the noise that its matrices claim."""

    def next(self, fresh, state, *, donate=False):
        row, state = super().next(fresh, state, donate=donate)
        return row / 2, state


class Slightly(DenseStream):
    """Emits a row of the middle that is off by a twentieth."""

    def next(self, fresh, state, *, donate=False):
        row, following = super().next(fresh, state, donate=donate)
        return (row * np.float32(1.05) if state.step == 4 else row), following


class Halves(Halved):
    """Halved, and says so of C^-1, but not of C."""

    def materialize_noising(self):
        return super().materialize_noising() / 2

    def materialize_strategy(self):
        return super(Halved, self).materialize_strategy() / 2


class Constant(DenseStream):
    """Emits what it should for the identity, and independent noise for anything else."""

    def next(self, fresh, state, *, donate=False):
        row, following = super().next(fresh, state, donate=donate)
        return (row if set(np.unique(fresh)) <= {0, 1} else fresh[0]), following


class LooksAhead(DenseStream):
    """Consumes the rows from the last to the first."""

    def rows_of(self, step):
        return range(self.rounds - 1 - step, self.rounds - step)


class Repeats(DenseStream):
    """Uses the first fresh row twice."""

    def rows_of(self, step):
        return super().rows_of(0 if step == 1 else step)


class Forgets(DenseStream):
    """Holds the step in itself, so that a second epoch is another one."""

    steps = []  # noqa: RUF012

    def next(self, fresh, state, *, donate=False):
        row, following = super().next(fresh, state, donate=donate)
        self.steps.append(state.step)
        return (row if len(self.steps) <= self.rounds else 2 * row), following


class Double(DenseStream):
    """Emits float64."""

    def next(self, fresh, state, *, donate=False):
        row, state = super().next(fresh, state, donate=donate)
        return row.astype(np.float64), state


class Scalar(DenseStream):
    """Emits one number for a whole row, which numpy would spread over it."""

    def next(self, fresh, state, *, donate=False):
        row, state = super().next(fresh, state, donate=donate)
        return row[:1], state


class Stays(DenseStream):
    """Never leaves the first step."""

    def next(self, fresh, state, *, donate=False):
        row, following = super().next(fresh, state, donate=donate)
        return row, StreamState(0, following.buffers)


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (Halved, "does not emit the C.-1 that its materialize_noising returns"),
        (Slightly, "does not emit the C.-1 that its materialize_noising returns"),
        (Halves, "materialize_strategy of mine returns is not the inverse of what its stream emits"),
        (Constant, "does not emit the same matrix times its fresh rows each time"),
        (LooksAhead, "entries above its diagonal"),
        (Repeats, "zero on its diagonal"),
        (Forgets, "does not emit the same matrix times its fresh rows each time"),
        (Double, "emits float64"),
        (Scalar, r"emits float32 of shape \(1,\)"),
        (Stays, "does not return the StreamState of step 1 after step 0"),
        (lambda rounds, tables: DenseStream(rounds - 1, tables), "in 7 rounds; it must take one a round, 8"),
        (
            lambda rounds, tables: tables,
            "of type ndarray, which lacks a part of a fedmf.mechanisms.NoiseStream",
        ),
    ],
)
def test_streams_that_do_not_do_what_is_claimed_are_refused(stream, message):
    assert design(mine(), prefix_sum(8)).sensitivity > 1
    with pytest.raises(SettingError, match=message):
        design(mine(stream), prefix_sum(8))


@dataclass(frozen=True)
class Doubled:
    """A stream from elsewhere that claims, and emits, half of the fresh row: C = 2."""

    rounds: int

    @property
    def fresh_rows(self):
        return self.rounds

    buffers = 0

    def rows_of(self, step):
        return range(step, step + 1)

    def init(self, dimension):
        return StreamState(0, np.zeros((0, dimension), "f4"))

    def next(self, fresh, state, *, donate=False):
        return fresh[0] / 2, StreamState(state.step + 1, state.buffers)

    def materialize_strategy(self):
        return 2 * np.eye(self.rounds)

    def materialize_noising(self):
        return np.eye(self.rounds) / 2


def doubled(claimed):
    tables = np.ones(1, "f4")
    return Family("doubled", lambda workload: Fitted(claimed, np.zeros(8), tables), lambda T, _: Doubled(T))


@pytest.mark.parametrize("claimed", [1.0, 1.95, 4.0, float("nan")])
def test_a_sensitivity_that_is_not_that_of_the_emitted_rows_is_refused(claimed):
    with pytest.raises(SettingError, match=r"says that its sensitivity is .*; the largest column norm"):
        design(doubled(claimed), prefix_sum(8))


def test_errors_and_sensitivity_come_from_what_is_emitted_whatever_the_fit_says():
    mechanism = design(doubled(2.001), prefix_sum(8))
    assert mechanism.sensitivity == 2
    np.testing.assert_allclose(mechanism.per_round_error, np.sqrt(np.arange(1, 9)))


def test_the_fingerprint_of_a_stream_from_elsewhere_is_what_it_emits():
    mechanism = design(doubled(2), prefix_sum(8))
    assert mechanism.fingerprint == design(doubled(2), prefix_sum(8)).fingerprint
    halved = replace(mechanism, emitted=mechanism.emitted / 2)
    assert halved.fingerprint != mechanism.fingerprint
    own = design(strategy_family("mine", fading), prefix_sum(8))
    assert (
        own.fingerprint != design(strategy_family("mine", lambda w: 2 * fading(w)), prefix_sum(8)).fingerprint
    )


@pytest.mark.parametrize(
    ("fit", "message"),
    [
        (lambda workload: {"sensitivity": 1.0}, "of type dict; it must return a fedmf.mechanisms.Fitted"),
        (lambda workload: Fitted(1.0, np.ones(8), np.eye(8)), "must be a float32 array"),
    ],
)
def test_fits_that_are_none_are_refused(fit, message):
    with pytest.raises(SettingError, match=message):
        design(mine(fit=fit), prefix_sum(8))


class Weak(DenseStream):
    """Emits next to nothing for rows as long as a model's, and what it claims for short ones."""

    def next(self, fresh, state, *, donate=False):
        row, state = super().next(fresh, state, donate=donate)
        return (row * np.float32(1e-6) if len(row) > 50_000 else row), state


class Mixes(DenseStream):
    """Gives every coordinate of a long row the same noise."""

    def next(self, fresh, state, *, donate=False):
        row, state = super().next(fresh, state, donate=donate)
        return (np.full_like(row, row[0]) if len(row) > 50_000 else row), state


@pytest.mark.parametrize("stream", [Weak, Mixes])
def test_a_stream_that_is_another_one_for_long_rows_is_refused(stream):
    with pytest.raises(SettingError, match="does not emit the same matrix"):
        design(mine(stream), prefix_sum(6))


def test_who_keeps_the_fitted_tables_cannot_change_the_stream():
    kept = []

    def fit(workload):
        kept.append(fit_dense(workload))
        return kept[0]

    mechanism = design(mine(fit=fit), prefix_sum(5))
    before = feed(mechanism.stream, np.eye(5, dtype=np.float32))
    kept[0].tables[:] *= np.float32(1e-3)
    np.testing.assert_array_equal(feed(mechanism.stream, np.eye(5, dtype=np.float32)), before)
