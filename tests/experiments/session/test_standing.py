"""One short line for logs: what it must say, that it fits, and that it claims no more privacy than the statement."""

import pytest

from experiments.session.progress import LONGEST_LINE, Standing
from fedmf.rounding import rounded_up

DAYS = "over 100 d 23 h left"


def standing(**changes):
    given = {
        "round": 88, "rounds": 176, "epoch": 4, "epochs": 8, "scored": 80, "values": {"accuracy": 0.928},
        "epsilon": 5.4712, "epsilon_end": 7.9996, "delta": 1e-4, "bytes_per_client": 785.0, "has_noise": True,
    }  # fmt: skip
    return Standing(**(given | changes))


def largest(**changes):
    """The longest numbers that a run can show."""
    values = {"accuracy": 1.0} | {f"a_metric_of_a_rather_long_name_{n}": -1.234e-300 for n in range(9)}
    rounds = {"round": 10**7, "rounds": 10**7, "epoch": 10**6, "epochs": 10**6, "scored": 10**7}
    return standing(**({"values": values, "epsilon": 123456.7, "epsilon_end": 123456.7} | rounds | changes))


def test_a_line_names_the_last_score_and_its_round():
    assert standing().line("7 s left") == (
        "round 88/176 | epoch 4/8 | epsilon 5.472 of 8 | accuracy 92.8 % (round 80) | 7 s left"
    )
    assert "not scored yet" in standing(scored=None, values={}).line("")


def test_further_metrics_stand_in_it_as_far_as_they_fit():
    values = {"accuracy": 0.5, "f1": 0.25, "top5": None}
    assert "(round 80) | f1 0.25 | top5 – | 7 s left" in standing(values=values).line("7 s left")
    line = standing(values={"accuracy": 0.5, "f1": 0.25, "a" * 60: 0.5}).line("7 s left")
    assert "f1 0.25 | 7 s left" in line
    assert "aaa" not in line


@pytest.mark.parametrize("job", ["", "job 100000/100000"])
@pytest.mark.parametrize("clients", ["", "clients 1000000/1000000"])
@pytest.mark.parametrize(
    "privacy", [{"epsilon_end": 19.99}, {}, {"reproducible": True}, {"has_noise": False}]
)
def test_the_longest_line_has_120_characters_and_keeps_round_privacy_and_accuracy(job, clients, privacy):
    line = largest(**privacy).line(DAYS, clients=clients, job=job)
    assert len(line) <= LONGEST_LINE == 120
    assert "round 10000000/10000000" in line
    assert "accuracy 100.0 %" in line
    assert ("NOT private" in line) is (
        privacy != {"epsilon_end": 19.99}
    )  # the largest has an epsilon above 20


def test_the_unit_of_privacy_is_in_no_line_and_the_epsilon_of_one_is_never_below_the_one_spent():
    for epsilon in (0.001234, 1.0001, 5.4712, 9.996, 99.95, 12345.6, 8.0):
        said = standing(epsilon=epsilon).line("").partition("epsilon ")[2].split()[0]
        assert epsilon <= float(said) <= 1.0011 * epsilon
        assert float(rounded_up(epsilon, 4)) >= epsilon


def test_the_facts_of_a_live_view_name_score_round_speed_and_delta():
    facts = standing().facts(2.5, "over 3 min 0 s left")
    assert facts["accuracy"] == "92.8 % (after round 80)"
    assert facts["speed"] == "2.5 s a round"
    assert facts["privacy"] == "epsilon 5.472 of 8 at delta 0.0001"
    assert facts["time left"] == "over 3 min 0 s"
    assert "NOT private (reproducible)" in standing(reproducible=True).facts(None, "")["privacy"]
