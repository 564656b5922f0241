"""`python -m experiments.plan`: the contract of its JSON, its text, and its refusals."""

import json
import subprocess
import sys

import pytest

from experiments.cli import command
from experiments.plan.__main__ import plan
from experiments.plan.planned import PlanSettings
from fedmf.accounting import EpochEvent, privacy_spent, rdp

pytestmark = pytest.mark.long

KEYS = {
    "epsilon",
    "epsilon_rdp",
    "epsilon_tight",
    "epsilon_exact",
    "noise_multiplier",
    "effective_noise_multiplier",
    "delta",
    "order",
    "adjacency",
    "rdp",
    "feasible",
    "uplink_bytes_per_client",
    "mean_noise_std",
}
GIVEN = (
    "clients=3400",
    "dimension=1000000",
    "cohort_size=100",
    "epochs=16",
    "keep_probability=0.01",
    "delta=1e-5",
)


def exit_code(*overrides):
    with pytest.raises(SystemExit) as caught:
        command.run(plan, "plan", PlanSettings, "doc", list(overrides))
    return caught.value.code


@pytest.fixture
def planned(capsys):
    def run(*overrides):
        assert exit_code(*overrides, "output=json") == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_json_holds_the_contracts_keys(planned):
    found = planned(*GIVEN, "noise_multiplier=0.05")
    assert set(found) >= KEYS
    price = found["floating_point"]["a"]
    real = privacy_spent(EpochEvent(0.05, 0.01, found["linf_over_l2"]), 16, delta=1e-5 * (1 - 2 * price))
    assert found["epsilon"] == found["epsilon_rdp"] == real.epsilon + 2 * price
    assert found["epsilon"] == pytest.approx(3.681862613654582, rel=1e-6)
    assert found["epsilon_exact"] is None
    assert found["epsilon_tight"] < found["epsilon_rdp"]
    assert found["effective_noise_multiplier"] == pytest.approx(5.0)
    assert found["uplink_bytes_per_client"] == pytest.approx(4 * 0.01 * 2**20)
    assert found["mean_noise_std"] == pytest.approx(0.05 / (0.01 * 100))
    assert found["adjacency"] == "zero_out"
    assert found["feasible"] is True
    assert found["rdp"] is None


def test_the_tight_epsilon_is_there_whichever_accountant_was_chosen_and_null_under_replacement(planned):
    by_rdp = planned(*GIVEN, "noise_multiplier=0.1")
    by_tight = planned(*GIVEN, "noise_multiplier=0.1", "accountant=tight")
    assert by_rdp["epsilon_tight"] == by_tight["epsilon_tight"] == by_tight["epsilon"] < by_rdp["epsilon"]
    assert by_rdp["epsilon_rdp"] == by_tight["epsilon_rdp"]
    assert "this project's own and not refereed" in by_rdp["epsilon_tight_is"]
    assert planned(*GIVEN, "noise_multiplier=0.1", "adjacency=replace")["epsilon_tight"] is None
    less = planned(*GIVEN, "epsilon=2", "accountant=tight")["noise_multiplier"]
    assert less < 0.95 * planned(*GIVEN, "epsilon=2")["noise_multiplier"]


def test_the_table_shows_the_noise_that_the_tight_accountant_saves(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    assert exit_code(*GIVEN, "epsilon=2", "accountant=tight") == 0
    text = capsys.readouterr().out
    assert "less noise than rdp" in text
    assert "7.0%" in text
    assert "not refereed" in text
    assert exit_code(*GIVEN, "epsilon=2") == 0
    assert "less noise" not in capsys.readouterr().out


def test_a_target_epsilon_gives_the_noise_and_the_noise_gives_the_epsilon_back(planned):
    for adjacency in ("zero_out", "replace"):
        noise = planned(*GIVEN, "epsilon=2.5", f"adjacency={adjacency}")["noise_multiplier"]
        back = planned(*GIVEN, f"noise_multiplier={noise!r}", f"adjacency={adjacency}")
        assert back["epsilon"] == pytest.approx(2.5, rel=1e-4)
        assert back["adjacency"] == adjacency


def test_without_sparsification_epsilon_is_exact_and_rdp_stands_beside_it(planned):
    found = planned("noise_multiplier=5", "epochs=16")
    assert found["epsilon"] == found["epsilon_exact"] < found["epsilon_rdp"]
    assert found["uplink_bytes_per_client"] is None
    assert found["mean_noise_std"] is None


def test_a_runs_summary_gives_its_epsilon(planned):
    found = planned(
        "linf_over_l2=0.0987", "keep_probability=0.1", "noise_multiplier=0.71", "epochs=8", "delta=1e-4",
        "dimension=650", "cohort_size=64", "clients=1437", "rounds_per_epoch=22",
    )  # fmt: skip
    a = found["floating_point"]["a"]
    assert 1e-9 < a < 1e-7
    spent = privacy_spent(EpochEvent(0.71, 0.1, 0.0987), 8, delta=1e-4, precision=a)
    assert found["epsilon"] == spent.epsilon


def test_epsilon_does_not_depend_on_clients_cohort_rounds_or_mechanism(planned):
    """The trap of noise on the mean: only the noise of the mean knows n."""
    base = ("linf_over_l2=0.01", "keep_probability=0.01", "noise_multiplier=0.05", "epochs=4")
    first = planned(*base, "clients=1000", "cohort_size=10", "mechanism=independent")
    second = planned(*base, "clients=9000", "cohort_size=40", "rounds_per_epoch=3", "mechanism=optimal")
    assert first["epsilon"] == second["epsilon"]
    assert first["mean_noise_std"] == pytest.approx(4 * second["mean_noise_std"])


def test_orders_give_the_curve_of_one_epoch(planned):
    found = planned(*GIVEN, "noise_multiplier=0.05", "orders=[2,2.5,1.1,16,1e6]")
    event = EpochEvent(0.05, 0.01, found["linf_over_l2"])
    assert found["rdp"] == {key: rdp(event, float(key)) for key in ("2", "2.5", "1.1", "16", "1000000")}
    replaced = planned(*GIVEN, "noise_multiplier=0.05", "orders=[2]", "adjacency=replace")
    assert replaced["rdp"]["2"] > found["rdp"]["2"]


def test_the_infinity_norm_follows_the_rotation(planned):
    assert planned(*GIVEN, "epsilon=3")["linf_over_l2"] == pytest.approx(0.005935076377073027)
    identity = planned(*GIVEN, "epsilon=3", "rotation=identity")
    assert identity["linf_over_l2"] == 1
    assert identity["uplink_bytes_per_client"] == pytest.approx(40_000)  # nothing is padded
    assert planned(*GIVEN, "epsilon=3", "linf_over_l2=7")["linf_over_l2"] == 1


def test_no_noise_is_null_and_said_not_to_be_private(planned, capsys):
    found = planned(*GIVEN, "noise_multiplier=0")
    assert found["epsilon"] is None
    assert found["epsilon_rdp"] is None
    assert exit_code(*GIVEN, "noise_multiplier=0") == 0
    assert "NOT private" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("overrides", "feasible", "largest"),
    [
        (("cohort_size=100", "rounds_per_epoch=34"), True, None),
        (("cohort_size=100", "rounds_per_epoch=35"), False, "97"),
        (("cohort_size=3400",), True, None),
        (("cohort_size=3401",), False, "3400"),
    ],
)
def test_cohorts_that_do_not_fit_are_not_feasible_and_the_largest_that_fits_is_said(
    overrides, feasible, largest, capsys
):
    given = (*GIVEN, "noise_multiplier=0.05", *overrides, "output=json")
    assert exit_code(*given) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["feasible"] is feasible
    assert (largest is None) == (printed.err == "")
    assert largest is None or largest in printed.err


def test_a_large_delta_is_warned_of_on_stderr(capsys):
    assert exit_code(*GIVEN, "noise_multiplier=0.05", "delta=1e-3", "output=json") == 0
    printed = capsys.readouterr()
    assert "1/N" in printed.err
    json.loads(printed.out)


def test_every_epsilon_is_said_with_its_unit_its_adjacency_and_what_it_does_not_cover(planned, capsys):
    found = planned(*GIVEN, "noise_multiplier=0.05", "adjacency=replace")
    assert (found["unit_of_privacy"], found["adjacency"]) == ("one client", "replace")
    assert found["not_covered"]
    assert exit_code(*GIVEN, "noise_multiplier=0.05") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "unit of privacy: one client, adjacency zero_out" in text
    assert all(item in text for item in found["not_covered"])


def test_text_shows_what_compression_costs(capsys):
    assert exit_code(*GIVEN, "noise_multiplier=0.05") == 0
    text = capsys.readouterr().out
    for part in ("epsilon = 3.682", "zero_out", "one client", "41,943", "0.003", "same noise of the mean"):
        assert part in text, part
    assert exit_code(*GIVEN, "epsilon=3", "orders=[2]") == 0
    text = capsys.readouterr().out
    assert "same epsilon" in text
    assert "order 2:" in text


def test_text_without_a_dimension_says_what_is_missing(capsys):
    assert exit_code("epsilon=3") == 0
    assert "Give dimension and cohort_size" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ((), "exactly one of them, or settings of a run, such as model=mlp"),
        (("mechanism=independent",), "or settings of a run, such as"),
        (("epsilon=3", "noise_multiplier=1"), "exactly one"),
        (("epsilon=3", "accountant=tight", "adjacency=replace"), "zero_out only"),
        (("epsilon=3", "adjacency=add"), "adjacency"),
        (("epsilon=3", "rotation=fft"), "rotation"),
        (("epsilon=3", "mechanism=magic"), "magic"),
        (("epsilon=3", "delta=2"), "delta"),
        (("epsilon=3", "epochs=0"), "epochs"),
        (("epsilon=-3",), "epsilon"),
        (("noise_multiplier=-3",), "noise_multiplier"),
        (("epsilon=3", "keep_probability=0"), "keep_probability"),
        (("epsilon=3", "keep_probability=0.1"), "dimension"),
        (("epsilon=3", "orders=[1]"), "order"),
        (("epsilon=3", "cohort_size=0"), "cohort_size"),
        (("epsilon=3", "surprise=1"), "surprise"),
    ],
)
def test_mistakes_exit_2_with_one_sentence(overrides, reason, capsys):
    assert exit_code(*overrides) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert reason in printed.err
    assert printed.err.count("\n") == 1


def test_it_imports_no_torch_no_flower_no_data_and_no_scipy():
    """A plan takes half a second of CPU; scipy alone would take as long to import."""
    code = "import sys, experiments.plan.__main__; print(*sys.modules)"
    modules = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"torch", "flwr", "client.data", "server", "matplotlib", "sklearn", "scipy"} & {*modules}


RUN = ("rounds_per_epoch=22", "epochs=8", "noise_multiplier=0.5", "cohort_size=64", "keep_probability=0.1",
       "dimension=650")  # fmt: skip


def test_the_error_that_a_setting_would_have_is_that_of_its_run(planned):
    """Known numbers: root losses of the run from dense eigendecompositions, over sqrt(22 * 8) rounds."""
    root = (22 * 8) ** 0.5
    found = planned(*RUN, "momentum=0")
    assert found["rms_error"] == pytest.approx(41.88567475 / root, rel=5e-5)
    assert found["lowest_rms_error"] == pytest.approx(41.88567475 / root, rel=1e-6)
    assert found["independent_rms_error"] == pytest.approx(124.80384609 / root, rel=1e-6)
    assert found["model_noise_std"] == pytest.approx(found["mean_noise_std"] * found["rms_error"])
    alone = planned(*RUN, "workload=prefix_sum", "momentum=0.9")
    assert alone["rms_error"] == pytest.approx(478.03022624 / root, rel=1e-3)
    assert alone["lowest_rms_error"] == pytest.approx(301.46794104 / root, rel=1e-6)
    assert alone["epsilon"] == pytest.approx(found["epsilon"], rel=1e-8)


def test_the_error_is_null_where_rounds_are_not_known_or_too_many(planned, caplog):
    assert planned("noise_multiplier=1", "epochs=8")["rms_error"] is None
    assert planned("noise_multiplier=1", "clients=10", "cohort_size=20")["rms_error"] is None
    assert planned("noise_multiplier=1", "rounds_per_epoch=100000")["rms_error"] is None
    assert "100000 rounds are too many for optimal in a plan" in caplog.text
    assert (
        planned("noise_multiplier=1", "mechanism=optimal_dense", "rounds_per_epoch=600")["rms_error"] is None
    )


def test_text_names_the_noise_in_the_model(capsys):
    assert exit_code(*RUN) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "22.72 with optimal (workload=run), 86.94 with independent noise, at least 22.72 with any" in text


@pytest.mark.parametrize("wrong", ["momentum=1", "schedule=linear", "workload=epoch"])
def test_an_optimizer_that_is_none_is_refused(wrong, capsys):
    assert exit_code(*RUN, wrong) == 2
    assert wrong.split("=")[0] in capsys.readouterr().err


def test_figures_whose_rounding_would_cost_too_much_are_refused_as_a_run_of_them_is(capsys):
    figures = (
        "clients=6144",
        "dimension=4000000000",
        "cohort_size=3",
        "rounds_per_epoch=2048",
        "epochs=1",
        "epsilon=4",
    )
    assert exit_code(*figures, "mechanism=sqrt_toeplitz") == 2
    assert "to epsilon; it must add at most 0.001" in capsys.readouterr().err
