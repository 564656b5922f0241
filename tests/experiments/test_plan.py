"""`python -m experiments.plan`, from figures and from the settings of a run: its JSON, its text, and its errors."""

import json

import pytest

import runs
from experiments.plan import main
from fedmf.accounting import EpochEvent, privacy_spent, rdp

pytestmark = pytest.mark.long

KEYS = {
    "epsilon", "epsilon_rdp", "epsilon_tight", "epsilon_exact", "noise_multiplier", "effective_noise_multiplier", "delta",
    "order", "adjacency", "rdp", "feasible", "uplink_bytes_per_client", "mean_noise_std",
}  # fmt: skip
GIVEN = "clients=3400 dimension=1000000 cohort_size=100 epochs=16 keep_probability=0.01 delta=1e-5"
TINY = (
    "dataset=synthetic dataset.clients=40 dataset.features=6 dataset.classes=3 population.cohort_size=8 "
    "population.epochs=3 privacy.epsilon=null privacy.noise_multiplier=0.4 seed=1"
)


@pytest.fixture(autouse=True)
def empty_folder(tmp_path_factory, monkeypatch):
    """A plan leaves nothing in the current directory."""
    monkeypatch.chdir(folder := tmp_path_factory.mktemp("empty"))
    yield
    assert list(folder.iterdir()) == []


@pytest.fixture
def shown(capsys):
    """A function of overrides that returns exit code, stdout and stderr of the command."""

    def call(*overrides):
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main([word for part in overrides for word in part.split()])
        return caught.value.code, *capsys.readouterr()

    return call


@pytest.fixture
def planned(shown):
    """A function of overrides that returns the JSON document."""
    return lambda *overrides: json.loads(shown(*overrides, "output=json")[1])


def test_json_holds_the_contracts_keys(planned):
    found = planned(GIVEN, "noise_multiplier=0.05")
    assert set(found) >= KEYS
    price = found["floating_point"]["a"]
    real = privacy_spent(EpochEvent(0.05, 0.01, found["linf_over_l2"]), 16, delta=1e-5 * (1 - 2 * price))
    assert found["epsilon"] == found["epsilon_rdp"] == real.epsilon + 2 * price
    assert found["epsilon"] == pytest.approx(3.681862613654582, rel=1e-6)
    assert found["effective_noise_multiplier"] == pytest.approx(5.0)
    assert found["uplink_bytes_per_client"] == pytest.approx(4 * 0.01 * 2**20)
    assert found["mean_noise_std"] == pytest.approx(0.05 / (0.01 * 100))
    assert (found["adjacency"], found["unit_of_privacy"]) == ("zero_out", "one client")
    assert found["epsilon_exact"] is found["rdp"] is None
    assert found["linf_over_l2"] == pytest.approx(0.005935076377073027)
    identity = planned(GIVEN, "epsilon=3 rotation=identity")
    assert (identity["linf_over_l2"], identity["uplink_bytes_per_client"]) == (1, 40_000)  # nothing is padded
    tight = planned(GIVEN, "noise_multiplier=0.05 accountant=tight")
    assert found["epsilon_tight"] == tight["epsilon_tight"] == tight["epsilon"] < found["epsilon"]
    assert planned(GIVEN, "noise_multiplier=0.1 adjacency=replace")["epsilon_tight"] is None


@pytest.mark.parametrize("adjacency", ["zero_out", "replace"])
def test_a_target_epsilon_gives_the_noise_and_the_noise_gives_the_epsilon_back(planned, adjacency):
    noise = planned(GIVEN, f"epsilon=2.5 adjacency={adjacency}")["noise_multiplier"]
    back = planned(GIVEN, f"noise_multiplier={noise!r} adjacency={adjacency}")
    assert (back["epsilon"], back["adjacency"]) == (pytest.approx(2.5, rel=1e-4), adjacency)


def test_without_sparsification_epsilon_is_exact_and_without_noise_null(planned, shown):
    found = planned("noise_multiplier=5 epochs=16")
    assert found["epsilon"] == found["epsilon_exact"] < found["epsilon_rdp"]
    assert found["uplink_bytes_per_client"] is found["mean_noise_std"] is None
    assert planned(GIVEN, "noise_multiplier=0")["epsilon"] is None
    assert "NOT private" in shown(GIVEN, "noise_multiplier=0")[1]
    # A calibration meets its target from below, and a person reads it rounded up.
    assert "5.717" in shown("epochs=2 epsilon=5.71640279")[1]


def test_epsilon_does_not_depend_on_clients_cohort_rounds_or_mechanism(planned):
    """The trap of noise on the mean: only the noise of the mean knows n."""
    base = "linf_over_l2=0.01 keep_probability=0.01 noise_multiplier=0.05 epochs=4 orders=[2,2.5,1.1,16,1e6]"
    first = planned(base, "clients=1000 cohort_size=10 mechanism=independent")
    second = planned(base, "clients=9000 cohort_size=40 rounds_per_epoch=3 mechanism=optimal")
    assert first["epsilon"] == second["epsilon"]
    assert first["mean_noise_std"] == pytest.approx(4 * second["mean_noise_std"])
    event = EpochEvent(0.05, 0.01, 0.01)
    curve = {key: rdp(event, float(key)) for key in ("2", "2.5", "1.1", "16", "1000000")}
    assert first["rdp"] == second["rdp"] == curve


@pytest.mark.parametrize(
    "more",
    [
        "compression.value_type=int8 optimizer.momentum=0.5 optimizer.schedule=cosine privacy.accountant=tight "
        "clipping.l2_norm=0.3",
        "privacy.adjacency=replace privacy.noise_multiplier=null privacy.epsilon=3 compression.rotation=identity "
        "mechanism=independent workload=prefix_sum",
        "compression.keep_probability=1 model=mlp model.hidden=7",
        "privacy.max_epsilon=5",
        "+experiment=linf_csgm dataset=digits population.rounds_per_epoch=2 population.epochs=1 clipping.l2_norm=0.5 "
        "privacy.noise_multiplier=null privacy.epsilon=3",
    ],
    ids=["int8", "replace", "dense", "max_epsilon", "linf"],
)  # fmt: skip
def test_the_plan_is_that_of_the_run(more, planned, capsys, tmp_path):
    given = [word for word in TINY.split() if "linf_csgm" not in more or "dataset" not in word] + more.split()
    found = planned(*given)
    directory = runs.run(tmp_path / "run", *given)
    said = capsys.readouterr().err
    summary = runs.summary(directory)
    for key in ("epsilon", "noise_multiplier", "delta", "adjacency", "linf_over_l2", "uplink_bytes_per_client",
                "unit_of_privacy"):  # fmt: skip
        assert found[key] == summary[key], key
    statement = json.loads((directory / "privacy.json").read_text())
    for key in ("accountant", "epsilon_rdp", "epsilon_exact", "effective_noise_multiplier", "order"):
        assert found[key] == statement[key], key
    scale = summary["keep_probability"] * 8
    noise = summary["noise_multiplier"] * found["counted_over_l2"]
    assert found["mean_noise_std"] == pytest.approx(noise / scale)
    if "linf_csgm" in more:  # in units of the clip norm, 0.5
        assert found["mean_noise_std"] == pytest.approx(summary["sigma"] / 0.5 / scale)
    mechanism = json.loads((directory / "mechanism.json").read_text())
    assert found["rms_error"] == mechanism["rms_error"]
    assert found["last_error"] == mechanism["per_round_error"][summary["rounds"] - 1]
    assert found["lowest_rms_error"] == mechanism["lowest_rms_error"]
    assert found["warnings"] == mechanism["misgivings"]
    assert found["warnings"] != [] or "compression.keep_probability=1" in more
    for sentence in found["warnings"]:
        assert said.count(f"warning: {sentence}\n") == 1
    assert (summary["epochs"] < 3) == ("max_epsilon" in more or "population.epochs=1" in more)
    assert summary["epochs"] == found["epochs"] == statement["epochs"]
    assert summary["epsilon"] < 5 or "max_epsilon" not in more


def test_a_run_that_cannot_be_is_planned_no_further_than_its_data(shown):
    for more, reason in (
        ("population.cohort_size=41", "population.cohort_size is 41, but there are only 40 clients"),
        ("privacy.max_epsilon=0.1", "above privacy.max_epsilon=0.1"),
    ):
        code, out, err = shown(TINY, more)
        assert (code, out) == (2, "")
        assert reason in err.splitlines()[-1]
