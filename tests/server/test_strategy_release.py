from functools import partial

import numpy as np
import pytest

from experiments.engines.grid import LocalGrid
from fedmf.errors import RunStoppedError, SettingError
from fedmf.updates import wire
from plans import KEY, small_plan
from server.cohort import SimulatedPopulation
from server.optimizer import Sgd
from server.state import first_state
from server.strategy import FedMF
from workers import Answering, honest, run, strategy_with


def test_after_a_commit_that_fails_the_round_is_run_again_with_the_same_noise():
    """The noise stream moves on in place: its rows must be drawn again, not taken from what was overwritten."""
    plan = small_plan(rounds_per_epoch=4)
    failures, sums = [3], []

    def commit(release):
        sums.append(release.noisy_sum)
        if release.round in failures:
            failures.remove(release.round)
            raise OSError("No space left on device")

    state = first_state(plan, np.zeros(50, "f4"), KEY)
    strategy = FedMF(plan, Sgd(1.0), SimulatedPopulation(), state, commit=commit)
    grid = LocalGrid(Answering(partial(honest, plan=plan)))
    with pytest.raises(OSError, match="No space"):
        strategy.start(grid)
    assert strategy.state.round == 2
    strategy.start(grid, num_rounds=2)
    np.testing.assert_array_equal(sums[2], sums[3])
    straight = FedMF(plan, Sgd(1.0), SimulatedPopulation(), state)
    straight.start(grid, num_rounds=4)
    np.testing.assert_array_equal(strategy.state.model, straight.state.model)


@pytest.mark.parametrize("family", ["optimal", "binary_tree", "sqrt_toeplitz", "honaker_full"])
def test_nobody_goes_on_from_a_state_whose_noise_stream_was_handed_on(family):
    """Its buffers hold a later round: the noise would not be what is accounted."""
    plan = small_plan(family=family)
    kept = []
    state = first_state(plan, np.zeros(50, "f4"), KEY)
    strategy = FedMF(
        plan,
        Sgd(1.0),
        SimulatedPopulation(),
        state,
        on_release=[lambda state, release: kept.append(state)],
    )
    grid = LocalGrid(Answering(partial(honest, plan=plan)))
    strategy.start(grid, num_rounds=3)
    for state in kept[:2]:
        with pytest.raises(SettingError, match="handed on to a later step"):
            FedMF(plan, Sgd(1.0), SimulatedPopulation(), state).start(grid, num_rounds=1)
    FedMF(plan, Sgd(1.0), SimulatedPopulation(), kept[2]).start(grid, num_rounds=1)


def test_after_an_interrupt_of_the_commit_nothing_more_is_asked_or_released():
    """The round may be on disk: run again with other data, its noise row would be used twice."""
    committed = []

    def commit(release):
        committed.append(release.round)
        if release.round == 2:
            raise KeyboardInterrupt

    strategy = strategy_with(commit=commit)
    player = Answering(honest)
    with pytest.raises(KeyboardInterrupt):
        strategy.start(LocalGrid(player))
    for _ in range(2):
        with pytest.raises(RunStoppedError, match="round 2 was cut off"):
            strategy.start(LocalGrid(player))
        with pytest.raises(RunStoppedError, match="round 2 was cut off"):
            strategy.aggregate_train(2, [])
    assert committed == [1, 2]
    assert len(player.seen) == 6


def test_what_is_heard_of_a_round_may_keep_it_from_being_released():
    """The hook is told before anything is committed, and what it raises leaves the round to be asked again."""
    plan, heard, committed = small_plan(noise_multiplier=1.0), [], []

    def on_heard(number, asked, answered):
        heard.append((number, len(asked), len(answered), list(committed)))
        if len(heard) == 2:
            raise RunStoppedError("stop")

    options = {"on_heard": on_heard, "commit": lambda release: committed.append(release.round)}
    state = first_state(plan, np.zeros(plan.dimension, "f4"), KEY)
    strategy = FedMF(plan, Sgd(1.0), SimulatedPopulation(), state, **options)
    grid = LocalGrid(Answering(lambda f, m: None if f[wire.CLIENT] == "0" else honest(f, m)))
    with pytest.raises(RunStoppedError, match="stop"):
        strategy.start(grid, timeout=0.05)
    assert strategy.state.round == 1
    assert len(strategy.state.register.spent) in (2, 3)
    strategy.start(grid, timeout=0.05)
    unstopped, _ = run(
        lambda f, m: None if f[wire.CLIENT] == "0" else honest(f, m), plan, plan.participation.rounds
    )
    np.testing.assert_array_equal(strategy.state.model, unstopped.state.model)
    assert [number for number, *_ in heard[:3]] == [1, 2, 2]
    assert [done for *_, done in heard[:3]] == [[], [1], [1]]
    assert {asked for _, asked, *_ in heard} == {3}
    assert {answered for *_, answered, _ in heard} == {2, 3}


def test_a_release_is_committed_before_anything_shows_it():
    seen = []
    strategy = strategy_with(
        commit=lambda release: seen.append(("commit", release.round, strategy.state.round)),
        on_release=[lambda state, release: seen.append(("shown", state.round, strategy.state.round))],
    )
    strategy.start(LocalGrid(Answering(honest)), num_rounds=2)
    assert seen == [("commit", 1, 0), ("shown", 1, 1), ("commit", 2, 1), ("shown", 2, 2)]


def test_a_failing_commit_leaves_the_round_unreleased():
    def fail(release):
        raise OSError("disk full")

    strategy = strategy_with(commit=fail)
    with pytest.raises(OSError, match="disk full"):
        strategy.start(LocalGrid(Answering(honest)))
    assert strategy.state.round == 0
    assert not strategy.state.register.spent


def test_a_failing_view_does_not_take_a_release_back():
    def fail(state, release):
        raise OSError("no terminal")

    strategy = strategy_with(on_release=[fail])
    with pytest.raises(OSError, match="no terminal"):
        strategy.start(LocalGrid(Answering(honest)))
    assert strategy.state.round == 1  # going on would not run round 1 again
