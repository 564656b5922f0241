"""The schedule of faults: a function of the seed, spread over the time, with every kind in its turn."""

from collections import Counter

from experiments.soak.faults import FAULTS
from experiments.soak.schedule import any_ten, drawn

NODES = ["a", "b", "c"]


def test_the_same_seed_gives_the_same_schedule_and_another_one_another():
    def schedule(seed):
        return drawn(seed, 5, any_ten(seed, list(FAULTS)), NODES)

    assert schedule(4) == schedule(4)
    kinds = list(FAULTS)
    assert drawn(4, 5, kinds, NODES) != drawn(5, 5, kinds, NODES)
    assert any_ten(4, list(FAULTS)) != any_ten(5, list(FAULTS))


def test_ten_faults_are_spread_over_the_time_and_none_lasts_into_the_next():
    for seed in range(50):
        for minutes in (1, 5, 60):
            schedule = drawn(seed, minutes, any_ten(seed, list(FAULTS)), NODES)
            assert len(schedule) == 10
            for number, (planned, following) in enumerate(zip(schedule, [*schedule[1:], None], strict=True)):
                assert 6 * minutes * number <= planned.at < 6 * minutes * (number + 1)
                assert 0 < planned.seconds <= 90
                end = 60 * minutes if following is None else following.at
                assert planned.at + planned.seconds <= end
                assert planned.node in NODES


def test_of_ten_no_kind_comes_twice_while_another_has_not_come():
    assert set(Counter(any_ten(0, list(FAULTS))).values()) == {1}
    assert sorted(Counter(any_ten(1, ["x", "y", "z"])).values()) == [3, 3, 4]
