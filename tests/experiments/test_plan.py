"""The commands that train nothing: `plan`, `mechanisms`, `datasets`, `vocabulary`; their JSON, text and errors."""

import itertools
import json

import numpy as np
import pytest

import runs
from client.data import DATASETS
from client.data.text import read_vocabulary
from client.models import MODELS
from experiments.cli import command
from experiments.datasets import DatasetsSettings, datasets
from experiments.mechanisms import MechanismsSettings, mechanisms
from experiments.plan import main
from experiments.settings.compose import compose
from experiments.vocabulary import VocabularySettings, vocabulary
from fedmf.accounting import EpochEvent, privacy_spent, rdp
from fedmf.errors import DataError, SettingError
from fedmf.mechanisms import FAMILIES, design, prefix_sum

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
        return runs.ended(capsys, main, [word for part in overrides for word in part.split()])

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
    keys = ("effective_noise_multiplier", "uplink_bytes_per_client", "mean_noise_std")
    assert [found[key] for key in keys] == pytest.approx([5.0, 4 * 0.01 * 2**20, 0.05 / (0.01 * 100)])
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
    said, summary = capsys.readouterr().err, runs.summary(directory)
    statement, mechanism = (
        json.loads((directory / name).read_text()) for name in ("privacy.json", "mechanism.json")
    )
    for document, keys in (
        (
            summary,
            "epsilon noise_multiplier delta adjacency linf_over_l2 uplink_bytes_per_client unit_of_privacy epochs",
        ),
        (statement, "accountant epsilon_rdp epsilon_exact effective_noise_multiplier order epochs"),
        (mechanism, "rms_error lowest_rms_error"),
    ):
        for key in keys.split():
            assert found[key] == document[key], key
    noise = summary["noise_multiplier"] * found["counted_over_l2"] / (summary["keep_probability"] * 8)
    assert found["mean_noise_std"] == pytest.approx(noise)
    if "linf_csgm" in more:  # in units of the clip norm, 0.5
        noise = summary["sigma"] / 0.5 / (summary["keep_probability"] * 8)
        assert found["mean_noise_std"] == pytest.approx(noise)
    assert found["last_error"] == mechanism["per_round_error"][summary["rounds"] - 1]
    assert found["warnings"] == mechanism["misgivings"]
    assert found["warnings"] != [] or "compression.keep_probability=1" in more
    assert all(said.count(f"warning: {sentence}\n") == 1 for sentence in found["warnings"])
    assert (summary["epochs"] < 3) == ("max_epsilon" in more or "population.epochs=1" in more)
    assert summary["epsilon"] < 5 or "max_epsilon" not in more


def test_without_a_cohort_a_table_has_the_plan_of_each_setting_and_recommends_one(planned, shown):
    figures = "clients=200 dimension=5000 epsilon=4 delta=1e-4"
    found = planned(figures)
    rows = found["table"]
    assert {(row["cohort_size"], row["keep_probability"], row["epochs"]) for row in rows} == {
        *itertools.product((20, 10), (0.01, 0.1, 1), (1, 3, 10))
    }
    recommended = [row for row in rows if row["recommended"]]
    for row in rows[::5] + recommended:  # each cohort, keep probability and number of epochs
        alone = planned(
            figures, *(f"{key}={row[key]}" for key in ("cohort_size", "keep_probability", "epochs"))
        )
        sent = alone["uplink_bytes_per_client"] * row["epochs"]
        assert row.pop("uplink_bytes_per_client_in_all") == sent
        asked = row["cohort_size"] * row["rounds_per_epoch"]
        assert row.pop("uplink_bytes_of_all_clients") == sent * asked
        assert not row.pop("recommended") or {key: found[key] for key in alone} == alone
        assert {key: alone[key] for key in row} == row
    out = shown(figures)[1]
    assert found["rounds"] >= 100
    assert found["noise_over_signal"] <= 1.25 * min(row["noise_over_signal"] for row in rows)
    assert out.count("│ * │") == out.count("* recommended, cohort_size=") == 1
    run = "dataset=synthetic dataset.clients=300 population.epochs=2 compression.keep_probability=0.5"
    advice = planned(run)
    alone, chosen = (
        planned(run, advice["recommended"]),
        next(r for r in advice["table"] if r["recommended"]),
    )
    assert ("table" in alone, len(advice["table"])) == (False, 2)
    assert all(alone[key] == chosen[key] for key in {*alone} & {*chosen})
    assert [row["epochs"] for row in planned(figures, "epochs=2 keep_probability=0.5")["table"]] == [2] * 2
    hopeless = planned("clients=30 dimension=50 epsilon=0.1 epochs=1 keep_probability=1")
    assert "(none has 100 rounds)" in hopeless["reason"]
    assert hopeless["reason"].endswith("; but with so much noise runs ended near chance")
    few = planned("dataset=synthetic dataset.clients=20 population.cohort_size=64 population.epochs=2")
    assert (few["cohort_size"], few["recommended"][:26], len(few["table"])) == (
        10,
        "population.cohort_size=10 ",
        3,
    )
    for more, why in (
        ("epochs=9000", "give cohort_size"),
        ("keep_probability=0", "keep_probability is 0.0; it must"),
    ):
        assert why in shown(figures, more)[2]


def test_a_run_that_cannot_be_is_planned_no_further_than_its_data(shown):
    for more, reason in (
        ("population.cohort_size=41", "population.cohort_size is 41, but there are only 40 clients"),
        ("epsilon=2", "epsilon: figures of a plan, next to dataset"),
        ("privacy.max_epsilon=0.1", "above privacy.max_epsilon=0.1"),
    ):
        code, out, err = shown(TINY, more)
        assert (code, out) == (2, "")
        assert reason in err.splitlines()[-1]


ROW_KEYS = {
    "family", "sensitivity", "root_loss", "rms_error", "max_error", "lower_bound", "relative_gap", "seconds",
}  # fmt: skip

EPOCHS, ROUNDS, BETA = 3, 6, 0.9
SETTINGS = (
    f"rounds={ROUNDS}", f"epochs={EPOCHS}", "workload=run", f"momentum={BETA}", "schedule=decay",
)  # fmt: skip


@pytest.fixture
def called(capsys):
    """A function of arguments that returns exit code, stdout and stderr of the command."""

    def call(*arguments):
        with pytest.raises(SystemExit) as stop:
            command.run(mechanisms, "mechanisms", MechanismsSettings, "doc", arguments)
        captured = capsys.readouterr()
        return stop.value.code, captured.out, captured.err

    return call


@pytest.fixture
def rows(called):
    """A function of arguments that returns the JSON rows of the command by family."""
    return lambda *arguments: {row["family"]: row for row in json.loads(called(*arguments, "output=json")[1])}


def test_json_lists_every_family_with_the_contracts_keys(rows):
    table = rows("rounds=16")
    assert list(table) == list(FAMILIES)
    for row in table.values():
        assert set(row) >= ROW_KEYS
        assert row["relative_gap"] == pytest.approx(row["root_loss"] / row["lower_bound"] - 1)
        kept = design(row["family"], prefix_sum(16)).stream.init(1).buffers
        assert row["bytes_per_parameter"] == kept.nbytes
    assert table["binary_tree"]["root_loss"] == pytest.approx(12.84523257866513, rel=1e-6)
    assert table["optimal"]["relative_gap"] < 5e-5


def test_every_family_costs_what_its_exported_stream_does_to_the_dense_run(rows, tmp_path):
    table = rows(*SETTINGS, f"export={tmp_path}")
    assert set(table) == {*FAMILIES, "optimal_for_prefix_sum", "optimal_for_momentum"}
    A = np.zeros((n := ROUNDS * EPOCHS, n))
    for t in range(n):  # round t holds eta_u beta^(u - s) of row s, s <= u <= t
        for s in range(t + 1):
            A[t, s] = sum((1 - u / n) * BETA ** (u - s) for u in range(s, t + 1))
    blocks = np.split(A, EPOCHS, axis=1)
    for name, row in table.items():
        with np.load(tmp_path / f"{name}.npz") as arrays:
            decoder, encoder, noise = arrays["decoder"], arrays["encoder"], arrays["noise"]
        assert decoder.shape == (EPOCHS, ROUNDS, encoder.shape[1])
        assert encoder.swapaxes(1, 2).shape == decoder.shape
        assert noise.shape == (EPOCHS, ROUNDS, ROUNDS)
        sensitivities = np.linalg.norm(encoder, axis=1).max(axis=1)
        squares = np.zeros(n)
        for epoch, columns in enumerate(blocks):
            alone = columns[epoch * ROUNDS : (epoch + 1) * ROUNDS]
            np.testing.assert_allclose(decoder[epoch] @ encoder[epoch], alone, atol=1e-9 * A.max())
            released = columns @ noise[epoch]  # in all rounds of the run: what stays in the model counts
            squares += sensitivities[epoch] ** 2 * np.square(released).sum(axis=1)
        assert row["sensitivity"] == pytest.approx(sensitivities.max(), rel=1e-9), name
        assert row["root_loss"] == pytest.approx(np.sqrt(squares.sum()), rel=1e-9), name
        assert row["rms_error"] == pytest.approx(np.sqrt(squares.mean()), rel=1e-9), name
        assert row["max_error"] == pytest.approx(np.sqrt(squares.max()), rel=1e-9), name


@pytest.fixture
def make(tmp_path, monkeypatch):
    """A function of overrides that writes a vocabulary below the current directory."""
    monkeypatch.chdir(tmp_path)
    return lambda *overrides: vocabulary(compose("vocabulary", overrides, VocabularySettings))


def test_the_file_has_the_most_frequent_words_or_characters_of_a_text(make, tmp_path, capsys):
    (tmp_path / "words").write_text("The cat saw the dog.\nThe dog saw a cat\n")
    make("text=words", "file=four", "size=4")
    assert read_vocabulary(tmp_path / "four", 10_000)[0] == ("the", "cat", "dog", "saw")
    (tmp_path / "letters").write_text("\u043e\u043d \u043e\n\u043e\r\n", encoding="utf-8")
    capsys.readouterr()
    make("text=letters", "file=three", "level=characters")
    assert read_vocabulary(tmp_path / "three", level="characters")[0] == ("\u043e", " ", "\u043d")
    assert capsys.readouterr().out == "3 characters of letters written to three\n"


def test_nothing_is_written_over_and_mistakes_are_sentences(make, tmp_path):
    (tmp_path / "words.txt").write_text("kept\n")
    (tmp_path / "blank").write_text("\n")
    for error, says, given in (
        (DataError, "exists already", "text=blank file=words.txt"),
        (DataError, "none cannot be read .*none does not exist", "text=none file=new.txt"),
        (DataError, "contains no words", "text=blank file=new.txt"),
        (SettingError, "size is 0", "text=blank file=new.txt size=0"),
        (SettingError, "level is 'letters'; it should be 'words' or 'char", "file=new.txt level=letters"),
    ):
        with pytest.raises(error, match=says):
            make(*given.split())
    assert (tmp_path / "words.txt").read_text() == "kept\n"
    assert not (tmp_path / "new.txt").exists()


def test_the_command_prints_every_data_set_and_model(capsys):
    datasets(compose("datasets", ["output=json"], DatasetsSettings))
    found = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found["datasets"]] == list(DATASETS)
    assert all({"summary", "test_users", "licence", "source"} <= set(row) for row in found["datasets"])
    sizes = {row["name"]: row["parameters"] for row in found["models"]}
    assert list(sizes) == list(MODELS)
    assert (sizes["logistic"], sizes["cnn"], sizes["lstm"]) == (650, 1_018_174, 4_053_428)
