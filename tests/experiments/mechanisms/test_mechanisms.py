"""The mechanisms command, its export and plots, and Table 2."""

from dataclasses import replace

import numpy as np
import pytest

from experiments.mechanisms import __main__ as mechanisms
from experiments.reproduce import denisov_table2
from fedmf.mechanisms import FAMILIES, family, workload
from fedmf.mechanisms.families.optimal_dense import OPTIMAL_DENSE, solve
from fedmf.mechanisms.optimum.fixed_point import certified
from fedmf.mechanisms.workload import momentum, prefix_sum

KEYS = {
    "family", "sensitivity", "root_loss", "rms_error", "max_error", "lower_bound", "relative_gap", "seconds",
}  # fmt: skip


def test_json_lists_every_family_with_the_contracts_keys(rows):
    table = rows("rounds=16")
    assert set(table) == set(FAMILIES)
    for row in table.values():
        assert set(row) >= KEYS
        assert row["relative_gap"] == pytest.approx(row["root_loss"] / row["lower_bound"] - 1)
        assert row["seconds"] >= 0
    assert table["binary_tree"]["root_loss"] == pytest.approx(12.84523257866513, rel=1e-6)
    assert table["optimal"]["relative_gap"] < 5e-5
    assert table["optimal"]["schatten_bound"] < table["optimal"]["lower_bound"]
    assert table["optimal"]["henzinger_bound"] < table["optimal"]["lower_bound"]


def test_families_are_chosen_in_order_and_once(rows):
    assert list(rows("rounds=8", "families=[blt,optimal,blt]")) == ["blt", "optimal"]


def test_momentum_lists_the_post_processed_prefix_optimum(rows):
    table = rows("rounds=32", "workload=momentum", "momentum=0.9")
    assert table["optimal_for_prefix_sum"]["root_loss"] == pytest.approx(56.031451861268906, rel=1e-4)
    assert table["optimal"]["root_loss"] == pytest.approx(50.63831772808168, rel=1e-4)
    assert table["optimal"]["henzinger_bound"] is None
    assert "optimal_for_prefix_sum" not in rows("rounds=32", "families=[optimal]")


def test_schedules_change_the_workload(rows):
    constant = rows("rounds=16", "workload=momentum", "families=[optimal]")
    cooled = rows("rounds=16", "workload=momentum", "schedule=cooldown", "families=[optimal]")
    assert cooled["optimal"]["root_loss"] < constant["optimal"]["root_loss"]


@pytest.mark.parametrize("schedule", ["decay", "cosine", "cooldown", "step"])
def test_scheduled_workloads_have_the_cost_of_their_dense_twin(rows, schedule):
    """S diag(eta) M_beta entry by entry, with eta at the part of the rounds that is done before each."""
    p = np.arange(16) / 16
    eta = {
        "decay": 1 - p,
        "cosine": 1 - 0.95 * (1 - np.cos(np.pi * p)) / 2,
        "cooldown": 1 - 0.95 * np.maximum(0, p - 0.75) / 0.25,
        "step": np.repeat([1, 0.15], [12, 4]),
    }[schedule]
    ages = np.subtract.outer(np.arange(16), np.arange(16))
    dense = solve(np.tril(np.ones((16, 16))) @ np.diag(eta) @ np.tril(0.9 ** np.maximum(ages, 0)))
    given = ("rounds=16", "workload=momentum", "momentum=0.9", f"schedule={schedule}", "families=[optimal]")
    row = rows(*given)["optimal"]
    assert row["lower_bound"] == pytest.approx(dense.lower, rel=1e-6)
    assert row["root_loss"] == pytest.approx(dense.upper, rel=1e-4)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The name of a module with two families of one's own that are called the same."""
    (tmp_path / "mine_of_the_command_tests.py").write_text(
        "import numpy as np\nfrom fedmf.mechanisms import strategy_family\n"
        "FAMILY = strategy_family('mine', lambda workload: np.eye(workload.rounds))\n"
        "OTHER = strategy_family('mine', lambda workload: 2 * np.eye(workload.rounds))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return "mine_of_the_command_tests"


def test_a_family_of_ones_own_is_compared_by_its_import_path(rows, own, tmp_path):
    table = rows("rounds=8", f"families=[independent,{own}:FAMILY]", f"export={tmp_path}")
    assert list(table) == ["independent", "mine"]
    assert table["mine"]["root_loss"] == pytest.approx(table["independent"]["root_loss"])
    assert table["mine"]["sensitivity"] == 1
    assert (tmp_path / "mine.npz").is_file()


def test_two_families_of_one_name_are_refused(run, own):
    code, _, err = run("rounds=8", f"families=[{own}:FAMILY,{own}:OTHER]")
    assert code == 2
    assert "families holds two that are called 'mine'" in err


def test_buffers_reach_the_families_that_have_them(rows, caplog):
    with caplog.at_level("INFO"):
        table = rows("rounds=64", "buffers=2", "families=[optimal,blt,banded_toeplitz,independent]")
    assert "buffers=2 says nothing to independent" in caplog.text
    assert [row["buffers"] for row in table.values()] == [2, 2, 2, 0]
    assert table["optimal"]["bytes_per_parameter"] == 8


def test_dense_families_are_left_out_where_too_large_unless_asked_for(run, monkeypatch):
    monkeypatch.setitem(family._OWN, "optimal_dense", replace(OPTIMAL_DENSE, most_rounds=8))
    code, out, _ = run("rounds=9", "output=json")
    assert code == 0
    assert "optimal_dense" not in out
    code, _, err = run("rounds=9", "families=[optimal_dense]")
    assert code == 2
    assert "at most 8 rounds" in err


def test_text_is_a_table_with_the_bounds_beside_every_loss(run):
    code, out, _ = run("rounds=8", "families=[optimal,binary_tree]")
    assert code == 0
    for word in ("8 rounds, prefix sums", "optimal", "binary_tree", "certified", "Schatten-1", "Henzinger"):
        assert word in out
    assert out.index(" optimal ") < out.index(" binary_tree ")


@pytest.mark.parametrize(
    ("given", "built"),
    [
        (("rounds=7",), prefix_sum(7)),
        (("rounds=7", "workload=momentum", "momentum=0.8"), momentum(7, 0.8)),
    ],
)
def test_export_can_be_checked_from_outside(run, tmp_path, given, built):
    code, _, _ = run(*given, f"export={tmp_path}")
    assert code == 0
    A = workload.materialize(built)
    for name in FAMILIES:
        with np.load(tmp_path / f"{name}.npz") as arrays:
            B, C, noise = arrays["decoder"], arrays["encoder"], arrays["noise"]
        assert B.dtype == C.dtype == noise.dtype == np.float64
        assert B.shape == C.T.shape
        assert noise.shape == A.shape
        np.testing.assert_allclose(B @ C, A, atol=1e-10 * A.max())
        np.testing.assert_allclose(A @ noise @ (A @ noise).T, B @ B.T, rtol=1e-12, atol=1e-12)


def test_plots_are_written(run, tmp_path, monkeypatch):
    monkeypatch.setattr(mechanisms.plots, "LARGEST_TREE", 64)
    code, _, _ = run("rounds=8", "families=[optimal,binary_tree]", f"plots={tmp_path}")
    assert code == 0
    assert {file.name for file in tmp_path.iterdir()} == {
        "error_by_round.png", "error_by_rounds.png", "matrices_optimal.png", "matrices_binary_tree.png",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rounds=0",), "rounds is 0"),
        (("rounds=five",), "rounds"),
        (("families=[fastest]",), "families is 'fastest'"),
        (("families=[nowhere:FAMILY]",), "families is 'nowhere:FAMILY', which cannot be imported"),
        (("families=[math:pi]",), "of type float; it must be a fedmf.mechanisms.Family"),
        (("workload=momentum", "schedule=linear"), "schedule is 'linear'; it must be one of constant, decay"),
        (("families=[]",), "families is empty"),
        (("momentum=0.9",), "workload=momentum"),
        (("workload=momentum", "momentum=1"), "momentum is 1.0"),
        (("workload=average",), "workload"),
        (("rounds=8", "buffers=0", "families=[optimal]"), "buffers is 0"),
        (("rounds=8", "buffers=9", "families=[optimal]"), "buffers is 9"),
        (("rounds=8", "buffers=4", "families=[binary_tree]"), "binary_tree cannot be told"),
        (("rounds=8", "buffers=9", "families=[banded_toeplitz]"), "buffers is 9"),
        (("rounds=5000", "families=[independent]", "export=/nowhere"), "rounds is 5000"),
        (("rounds=8", f"export={__file__}"), "is a file"),
        (("rounds=8", f"plots={__file__}/below"), "is a file"),
        (("families=optimal",), "lists are given as key=[a,b]"),
        (("colour=blue",), "colour"),
        (("+colour=blue",), "colour is no setting"),
    ],
)
def test_mistakes_exit_2_with_a_sentence(run, arguments, message):
    code, out, err = run(*arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert message in err


def test_help_shows_the_keys(run):
    code, out, _ = run("--help")
    assert code == 0
    assert "buffers = null" in out


def test_table_2_names_the_entry_that_was_not_converged():
    line = denisov_table2.row(256)
    assert line[2] == pytest.approx(74.4, abs=0.05)
    assert line[4] <= line[5] <= line[6]
    assert line[8] <= 40.45
    assert line[-1] == "converged"
    assert certified(prefix_sum(4096)).upper < denisov_table2.PUBLISHED[4096][1] - denisov_table2.PRINTED


@pytest.mark.slow
def test_table_2_is_reproduced_to_its_printed_digit(tmp_path):
    result = denisov_table2.reproduce(tmp_path)
    assert result.worst_relative_error < 0.05 / 40
    assert len(result.notes) == 1
    assert "217.3 at 4096" in result.notes[0]
