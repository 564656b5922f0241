"""The mechanisms command: every figure against a dense twin or an oracle number, its export, and mistakes."""

import json
from dataclasses import replace

import numpy as np
import pytest

from experiments.cli import command
from experiments.mechanisms import MechanismsSettings, mechanisms
from fedmf.mechanisms import FAMILIES, family, workload
from fedmf.mechanisms.families.optimal import OPTIMAL_DENSE
from fedmf.mechanisms.workload import momentum

pytestmark = pytest.mark.long

KEYS = {
    "family", "sensitivity", "root_loss", "rms_error", "max_error", "lower_bound", "relative_gap", "seconds",
}  # fmt: skip

EPOCHS, ROUNDS, BETA = 3, 6, 0.9
SETTINGS = (
    f"rounds={ROUNDS}", f"epochs={EPOCHS}", "workload=run", f"momentum={BETA}", "schedule=decay",
)  # fmt: skip


@pytest.fixture
def run(capsys):
    """A function of arguments that returns exit code, stdout and stderr of the command."""

    def call(*arguments):
        with pytest.raises(SystemExit) as stop:
            command.run(mechanisms, "mechanisms", MechanismsSettings, "doc", arguments)
        captured = capsys.readouterr()
        return stop.value.code, captured.out, captured.err

    return call


@pytest.fixture
def rows(run):
    """A function of arguments that returns the JSON rows of the command by family."""
    return lambda *arguments: {row["family"]: row for row in json.loads(run(*arguments, "output=json")[1])}


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The name of a module with two custom families that are called the same."""
    (tmp_path / "own_of_mechanisms.py").write_text(
        "import numpy as np\nfrom fedmf.mechanisms import strategy_family\n"
        "FAMILY = strategy_family('mine', lambda workload: np.eye(workload.rounds))\n"
        "OTHER = strategy_family('mine', lambda workload: 2 * np.eye(workload.rounds))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return "own_of_mechanisms"


def test_json_lists_every_family_with_the_contracts_keys(rows):
    table = rows("rounds=16")
    assert list(table) == list(FAMILIES)
    for row in table.values():
        assert set(row) >= KEYS
        assert row["relative_gap"] == pytest.approx(row["root_loss"] / row["lower_bound"] - 1)
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


def test_the_export_of_one_epoch_can_be_checked_from_outside(run, tmp_path):
    assert run("rounds=7", "workload=momentum", "momentum=0.8", f"export={tmp_path}")[0] == 0
    A = workload.materialize(momentum(7, 0.8))
    for name in FAMILIES:
        with np.load(tmp_path / f"{name}.npz") as arrays:
            B, C, noise = arrays["decoder"], arrays["encoder"], arrays["noise"]
        assert B.dtype == C.dtype == noise.dtype == np.float64
        np.testing.assert_allclose(B @ C, A, atol=1e-10 * A.max())
        np.testing.assert_allclose(A @ noise @ (A @ noise).T, B @ B.T, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["prefix_sum", "momentum"])
def test_designs_of_one_epoch_are_restarted_and_costed_on_the_run(rows, tmp_path, name):
    size = ("rounds=10", "epochs=4", "momentum=0.8", "schedule=cosine")
    alone, fitted = rows(*size, f"workload={name}", f"export={tmp_path}"), rows(*size, "workload=run")
    for key in ("root_loss", "rms_error", "max_error", "sensitivity", "lower_bound", "epochs"):
        assert alone["optimal"][key] == pytest.approx(fitted[f"optimal_for_{name}"][key], rel=1e-12), key
    assert f"optimal_for_{name}" not in alone
    assert len({"optimal_for_prefix_sum", "optimal_for_momentum"} & set(alone)) == 1
    with np.load(tmp_path / "optimal.npz") as arrays:
        assert len(arrays["noise"]) == 4
        assert np.all(arrays["noise"] == arrays["noise"][0])


def test_chosen_families_are_listed_in_order_and_once_custom_ones_by_their_name(rows, own, tmp_path):
    chosen = f"families=[independent,{own}:FAMILY,optimal,independent]"
    table = rows("rounds=8", chosen, f"export={tmp_path}")
    assert list(table) == ["independent", "mine", "optimal"]  # and no optimum for another workload
    assert table["mine"]["root_loss"] == pytest.approx(table["independent"]["root_loss"])
    assert (tmp_path / "mine.npz").is_file()


def test_buffers_reach_the_families_that_have_them_in_every_epoch(rows):
    given = ("rounds=32", "epochs=3", "workload=run", "buffers=2", "families=[optimal,blt,banded_toeplitz,independent]")  # fmt: skip
    table = rows(*given)
    assert [row["buffers"] for row in table.values()] == [2, 2, 2, 0]
    assert table["optimal"]["bytes_per_parameter"] == 8


def test_dense_families_are_left_out_where_too_large(run, monkeypatch):
    monkeypatch.setitem(family._OWN, "optimal_dense", replace(OPTIMAL_DENSE, most_rounds=8))
    code, out, _ = run("rounds=9", "output=json")
    assert code == 0
    assert "optimal_dense" not in out


def test_text_is_a_table_with_the_least_loss_first(run):
    given = ("rounds=8", "epochs=3", "workload=run", "schedule=cooldown", "families=[binary_tree,optimal]")
    code, out, _ = run(*given)
    assert code == 0
    assert "3 epochs of 8 rounds, fitted to workload=run, momentum 0, cooldown learning rate" in out
    assert out.index(" optimal ") < out.index(" binary_tree ")


MISTAKES = (
    ("rounds=0", "rounds is 0"),
    (
        "rounds=8 families=[own_of_mechanisms:FAMILY,own_of_mechanisms:OTHER]",
        "families are called mine, mine",
    ),
    ("rounds=8 buffers=4 families=[binary_tree]", "binary_tree has no setting buffers"),
    ("epochs=2 workload=run rounds=513 families=[optimal_dense]", "at most 512 rounds"),
    ("rounds=2048 epochs=5 export=/nowhere", "rounds is 2048 and epochs 5"),
    (f"rounds=8 export={__file__}", "is a file"),
)


@pytest.mark.usefixtures("own")
def test_mistakes_exit_2_with_a_sentence(run):
    for arguments, message in MISTAKES:
        code, out, err = run(*arguments.split())
        assert (code, out, err[:7]) == (2, "", "error: ")
        assert message in err
