"""The register of spent clients against its obvious twin, a set of names."""

import time

import pytest
from hypothesis import given, strategies as st

from fedmf.errors import ParticipationError
from server.state import Register


@given(st.lists(st.lists(st.sampled_from("abcdefghij"), max_size=4), max_size=8))
def test_a_client_is_spent_once_whatever_the_history(history):
    register, seen, values = Register(), [], []
    for cohort in history:
        if len(set(cohort)) < len(cohort) or set(cohort) & set(seen):
            with pytest.raises(ParticipationError):
                register.spend(cohort)
        else:
            register = register.spend(cohort)
            seen += cohort
        values.append((register, frozenset(seen)))
    for value, spent in values:  # a refusal leaves the register as it was, and an older value stays valid
        assert value.spent == spent
        assert value == Register((spent,))


def test_a_round_copies_few_of_those_who_were_heard_before():
    register, copied, kept = Register(), 0, set()
    for number in range(1024):
        register = register.spend(str(10 * number + client) for client in range(10))
        new = [each for each in register.heard if id(each) not in kept]
        copied += sum(map(len, new))
        kept = {id(each) for each in register.heard}
        assert len(register.heard) <= number.bit_length() + 1
    assert len(register.spent) == 10_240
    assert copied <= 10_240 * 11


def test_a_round_of_a_run_that_heard_a_million_is_fast():
    register = Register((frozenset(map(str, range(10**6))),))
    began = time.perf_counter()
    for number in range(100):
        register = register.spend([f"a:{number}"])
    assert time.perf_counter() - began < 0.1
