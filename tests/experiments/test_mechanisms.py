"""The mechanisms command: every figure against a dense twin or an oracle number, its export, and mistakes."""

import json

import numpy as np
import pytest

from experiments.cli import command
from experiments.mechanisms import MechanismsSettings, mechanisms
from fedmf.mechanisms import FAMILIES, design, prefix_sum

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


def test_json_lists_every_family_with_the_contracts_keys(rows):
    table = rows("rounds=16")
    assert list(table) == list(FAMILIES)
    for row in table.values():
        assert set(row) >= KEYS
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
