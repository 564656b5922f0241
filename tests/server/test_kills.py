"""Processes that release rounds and are killed at random instants: see `chaos.rounds`, which has more kills than a test has time for."""

from chaos.rounds import kill


def test_killed_at_random_instants_a_run_loses_no_round_and_releases_none_twice(tmp_path):
    wrong, rounds = kill(tmp_path, 60, 1)
    assert wrong == [set(), set(), set()]
    assert rounds > 60
