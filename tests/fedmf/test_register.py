"""The register of spent clients against its obvious twin, a set and a counter of names."""

from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st

from attended import attended
from fedmf.client_bits import names, place
from fedmf.errors import ParticipationError
from fedmf.register import Register

# Names of simulations, of deployments, and of neither: near misses of a number, and names that end in a colon.
NAMES = (*"abcdefgh", "0", "00", "1", "01", "4095", "4096", "-1", "1.0", "", ":", ":1", "b7:1", "b7:01", "b7:4097", "b7:",
         "b7", "a:b:3", "a:b:", "\u0663", "x\n:5", "\ud800:1", str(10**18 - 1), str(10**18), str(10**30), "b8:1")  # fmt: skip


def test_no_two_names_share_a_place_and_every_place_gives_its_name():
    assert len({place(name) for name in NAMES}) == len(NAMES)
    for name in NAMES:
        key, bit = place(name)
        assert list(names(key, 1 << bit)) == [name]


@given(st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=4), max_size=6))
def test_a_client_is_spent_once_whatever_the_history(history):
    register, seen = Register(), []
    for cohort in history:
        if len(set(cohort)) < len(cohort) or set(cohort) & set(seen):
            with pytest.raises(ParticipationError):
                register.spend(cohort)
        else:
            register = register.spend(cohort)
            seen += cohort
        assert register.spent == frozenset(seen)  # a refusal leaves the register as it was


def test_a_register_counts_epochs_and_is_the_same_after_a_resume():
    register = Register()
    for epoch, cohort in enumerate((["a", "b"], ["b"], ["b", "c"])):
        register = register.next_epoch().spend(cohort)
        assert register.spent == frozenset(cohort)
        assert register.most_epochs == epoch + 1
        read = Register.from_arrays(register.to_arrays())
        assert read == register
        with pytest.raises(ParticipationError, match="client b"):
            read.spend(["b"])
        register = read
    assert attended(register.next_epoch()) == {"a": 1, "b": 3, "c": 1}


@given(st.lists(st.lists(st.sampled_from(NAMES), max_size=5, unique=True), max_size=8), st.data())
@settings(max_examples=200, deadline=None)
def test_a_register_is_a_set_and_a_counter_of_names_whatever_the_history(history, data):
    register, spent, earlier = Register(), set(), Counter()
    for cohort in history:
        if data.draw(st.booleans()):
            register, earlier, spent = register.next_epoch(), earlier + Counter(spent), set()
        if data.draw(st.booleans()):
            register = Register.from_arrays(register.to_arrays())
        if spent & set(cohort):
            with pytest.raises(ParticipationError):
                register.spend(cohort)
            continue
        before, held = register, set(spent)
        register = register.spend(cohort)
        spent |= set(cohort)
        assert (before.spent, len(before.spent)) == (held, len(held))  # the old value stays valid
        assert (set(register.spent), len(register.spent)) == (spent, len(spent))
        assert all((name in register.spent) == (name in spent) for name in NAMES)
        assert attended(register) == dict(earlier)
        assert register.most_epochs == max((earlier + Counter(spent)).values(), default=0)


def test_a_round_makes_only_the_bitmaps_of_its_cohort_anew():
    held = Register().spend(map(str, range(0, 10**6, 7)))
    after = held.spend(["1", "2", "500001"])
    bitmaps = dict(after.bitmaps.items())
    anew = [key for key, bitmap in held.bitmaps.items() if bitmaps[key] is not bitmap]
    assert sorted(anew) == [("", 0), ("", 122)]
    shards = after.bitmaps._shards
    assert sum(shards[number] is not shard for number, shard in held.bitmaps._shards.items()) == 2


def test_whom_a_register_has_beyond_an_earlier_one_is_named_and_nothing_is_missed():
    first = Register().next_epoch().spend(["a", "3", "7"])
    second = first.spend(["9000", "b:2"])
    assert sorted(second.spent_since(first)) == ["9000", "b:2"]
    assert first.spent_since(second) is None  # somebody is missing
    assert Register().next_epoch().spend(["4"]).spent_since(first) is None
    assert second.spent_since(Register.from_arrays(first.to_arrays())) == second.spent_since(first)
    following = second.next_epoch().spend(["3"])
    assert following.spent_since(second) == ["3"]
    assert following.spent_since(first) is None  # what the epoch before ended with is another
    assert following.next_epoch().spent_since(second) is None


def test_arrays_that_are_no_register_are_refused():
    arrays = Register().spend(["5", "a"]).next_epoch().spend(["6"]).to_arrays()
    arrays["bits"] = arrays["bits"] * 0
    with pytest.raises(ValueError, match="1 clients are spent, but not as many"):
        Register.from_arrays(arrays)
