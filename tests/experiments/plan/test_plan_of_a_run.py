"""`plan` with the settings of a run: what that run would say and spend, without training."""

import json

import pytest

import runs
from experiments.plan.__main__ import main
from fedmf.outlook import misgivings, noise_of_run
from plans import small_plan

pytestmark = pytest.mark.long

TINY = (
    "dataset=synthetic", "dataset.clients=40", "dataset.features=6", "dataset.classes=3", "population.cohort_size=8",
    "population.epochs=3", "privacy.epsilon=null", "privacy.noise_multiplier=0.4", "seed=1",
)  # fmt: skip


def exit_code(*arguments):
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    return caught.value.code


@pytest.fixture
def planned(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*overrides):
        assert exit_code(*overrides, "output=json") == 0
        return json.loads(capsys.readouterr().out)

    return run


@pytest.mark.parametrize(
    "more",
    [
        (),
        (
            "compression.value_type=int8", "optimizer.momentum=0.5", "optimizer.schedule=cosine",
            "privacy.accountant=tight", "clipping.l2_norm=0.3",
        ),
        (
            "privacy.adjacency=replace", "privacy.noise_multiplier=null", "privacy.epsilon=3", "compression.rotation=identity",
            "mechanism=independent", "workload=prefix_sum",
        ),
        ("compression.keep_probability=1", "model=mlp", "model.hidden=7", "population.rounds_per_epoch=4"),
        ("privacy.max_epsilon=5",),
    ],
    ids=["default", "int8", "replace", "dense", "max_epsilon"],
)  # fmt: skip
def test_the_plan_is_that_of_the_run(more, planned, capsys, tmp_path):
    found = planned(*TINY, *more)
    assert list(tmp_path.iterdir()) == []
    directory = runs.run(tmp_path / "run", *TINY, *more)
    said = capsys.readouterr().err
    summary = runs.summary(directory)
    for key in ("epsilon", "noise_multiplier", "delta", "adjacency", "linf_over_l2", "uplink_bytes_per_client",
                "unit_of_privacy"):  # fmt: skip
        assert found[key] == summary[key], key
    statement = json.loads((directory / "privacy.json").read_text())
    for key in ("accountant", "epsilon_rdp", "epsilon_exact", "effective_noise_multiplier", "order"):
        assert found[key] == statement[key], key
    assert found["mean_noise_std"] == pytest.approx(
        summary["noise_multiplier"] / (summary["keep_probability"] * 8)
    )
    mechanism = json.loads((directory / "mechanism.json").read_text())
    last = summary["rounds"] - 1
    assert found["rms_error"] == mechanism["rms_error"]
    assert found["last_error"] == mechanism["per_round_error"][last]
    assert found["lowest_rms_error"] == mechanism["lowest_rms_error"]
    assert found["warnings"] == mechanism["misgivings"]
    assert found["warnings"] != [] or "compression.keep_probability=1" in more
    for sentence in found["warnings"]:
        assert said.count(f"warning: {sentence}\n") == 1
    assert (summary["epochs"] < 3) == ("max_epsilon" in str(more))


def test_the_figures_of_its_summary_give_the_same_epsilon_and_noise(planned, tmp_path):
    found = planned(*TINY)
    again = planned(
        f"noise_multiplier={found['noise_multiplier']}", f"linf_over_l2={found['linf_over_l2']}", "dimension=21",
        "cohort_size=8", "clients=40", "epochs=3", "keep_probability=0.1", "delta=5e-5",
    )  # fmt: skip
    assert set(again) == set(found)
    apart = {key for key in found if found[key] != again[key]}
    assert apart <= {"unit_of_privacy", "warnings", "not_covered"}
    assert again["warnings"] == [
        sentence.replace("population.", "").replace("compression.", "") for sentence in found["warnings"]
    ]


def test_the_table_of_keep_probabilities_is_that_of_the_run(planned, capsys):
    given = ("model=logistic", "privacy.epsilon=2", "compression.value_type=int8")
    found = planned(*given)
    assert exit_code(*given) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    (chosen,) = [[cell for cell in row if cell != "│"] for row in rows if row[1] == "0.1"]
    mean = f"{found['mean_noise_std']:.3g}"
    bytes_sent = f"{found['uplink_bytes_per_client']:,.0f}"
    assert chosen[1] == "2"
    assert chosen[2] == f"{found['noise_multiplier']:.4g}"
    assert chosen[-2:] == [mean, bytes_sent]


def test_one_setting_of_a_run_is_enough_and_the_rest_are_its_defaults(planned):
    found = planned("model=logistic")
    assert found["epsilon"] == pytest.approx(8, rel=1e-3)
    assert found["unit_of_privacy"] == "one image = one client"
    assert found["warnings"] == []
    assert planned("+experiment=not_private")["epsilon"] is None


def test_a_hopeless_run_is_said_with_its_keys_and_exits_0(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ("population.cohort_size=2", "population.rounds_per_epoch=3", "privacy.delta=0.1")
    noise = ("privacy.noise_multiplier=null", "privacy.epsilon=1", "compression.keep_probability=0.01")
    assert exit_code(*TINY, *small, *noise) == 0
    printed = capsys.readouterr()
    warnings = [line for line in printed.err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 4
    assert "population.rounds_per_epoch=20 would ask 40" in printed.err
    assert "population.cohort_size is 2" in printed.err
    assert (
        "helps: a larger compression.keep_probability, more clients in an epoch, a larger epsilon"
        in printed.err
    )
    assert "epsilon = " in printed.out
    assert "keep probability" in printed.out


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("epsilon=2", "model=mlp"), "epsilon=2 is a figure of a plan and model=mlp a setting of a run"),
        (("client.epochs=2", "clients=40"), "clients=40 is a figure"),
        (("+experiment=not_private", "delta=1e-5"), "delta=1e-5 is a figure"),
        (("popultion.epochs=3",), "popultion"),
        (("model=mlp", "+privacy.epsilo=3"), "did you mean privacy.epsilon=3?"),
        (("epsilon=2", "+cohortsize=3"), "did you mean cohort_size=3?"),
        (
            ("epsilon=2", "privacy.delta=1e-5"),
            "epsilon=2 is a figure of a plan and privacy.delta=1e-5 a setting",
        ),
        (("epsilon=2", "privcy.delta=3"), "privcy.delta"),
        (("model=cnnn",), "cnnn"),
        ((*TINY, "population.cohort_size=41"), "population.cohort_size is 41, but there are only 40 clients"),
        ((*TINY, "privacy.epsilon=3"), "exactly one"),
        ((*TINY, "privacy.max_epsilon=0.1"), "privacy.max_epsilon"),
        ((*TINY, "dataset.path=nowhere.npz"), "path"),
        (("model=logistic", "orders=[2]"), "orders=[2] is a figure"),
        (("-m", "seed=1,2"), "-m"),
    ],
)
def test_mistakes_exit_2_with_one_sentence_and_leave_nothing(
    overrides, reason, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert exit_code(*overrides) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert reason in printed.err
    assert printed.err.count("error: ") == 1
    assert "Traceback" not in printed.err
    assert list(tmp_path.iterdir()) == []


def test_figures_are_warned_of_as_the_plan_that_they_describe(planned, capsys):
    given = {"clients": 100, "cohort_size": 2, "rounds_per_epoch": 4, "epochs": 2, "dimension": 50,
             "noise_multiplier": 3.0, "delta": 0.01, "keep_probability": 0.5}  # fmt: skip
    flat = [f"{key}={value}" for key, value in given.items()]
    found = planned(*flat, "momentum=0")
    assert found["warnings"] == list(misgivings(small_plan(**given)))
    assert len(found["warnings"]) == 4
    assert found["noise_over_signal"] == pytest.approx(noise_of_run(small_plan(**given)))
    silent = planned(*flat, "momentum=0", "noise_multiplier=0")
    assert silent["warnings"] == list(misgivings(small_plan(**{**given, "noise_multiplier": 0.0})))
    (problem, *others) = planned(*flat, "rounds_per_epoch=51")["warnings"]
    assert "51 disjoint cohorts" in problem
    assert not any("unasked" in sentence for sentence in others)
    assert planned("epsilon=2")["warnings"] == []  # nothing is known
    assert planned("epsilon=2")["noise_over_signal"] is None


def test_keys_that_both_have_do_not_decide(planned):
    flat = planned("mechanism=independent", "workload=run", "epsilon=2", "rounds_per_epoch=5")
    assert flat["unit_of_privacy"] == "one client"
    run = planned("mechanism=independent", "workload=run", *TINY)
    assert run["rms_error"] == run["independent_rms_error"]
    assert exit_code("mechanism=independent") == 2


def test_a_deployment_is_planned_for_the_clients_it_waits_for(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert exit_code(*TINY, "engine=deployment") == 2
    assert "population.min_available is null" in capsys.readouterr().err
    assert exit_code(*TINY, "engine=deployment", "population.min_available=11") == 0
    assert "leaves 3 of 11 clients unasked" in capsys.readouterr().err


def test_help_explains_both_forms(capsys):
    assert exit_code("--help") == 0
    text = capsys.readouterr().out
    assert "privacy.epsilon=2" in text
    assert "linf_over_l2 = null" in text
    assert exit_code("--help", "model=mlp") == 0
    assert "units of the hidden layer" in capsys.readouterr().out
