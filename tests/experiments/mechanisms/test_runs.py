"""The mechanisms command over whole runs: every figure against a dense twin or an oracle number."""

import matplotlib
import numpy as np
import pytest

from experiments.mechanisms import export, plots
from fedmf.mechanisms import FAMILIES, design_run, of_run, run_lower_bound

pytestmark = pytest.mark.long

# Root losses of the run from dense eigendecompositions, to a relative gap of 5e-11: rounds, epochs, momentum,
# schedule; the optimum, that of one epoch with this momentum, that of one epoch of prefix sums, independent noise.
ORACLES = [
    (22, 8, 0, "constant", 41.88567475099597, 54.06008099482908, 54.06008099482908, 124.80384609458156),
    (22, 8, 0.9, "constant", 301.46794104907957, 433.78131319761286, 478.0302262407455, 1153.349091680632),
    (32, 16, 0, "constant", 93.11172873765089, 135.7790578864995, 135.7790578864995, 362.392052892996),
    (128, 4, 0.9, "constant", 498.4998111745463, 676.1385419723658, 780.2291280181979, 3527.585042587489),
    (16, 3, 0.5, "cooldown", 26.124099769483273, 30.035994651520046, 31.406973816230824, 65.33090940619813),
    (100, 5, 0, "decay", 47.46342858874558, 61.64961448702768, 61.64961448702768, 250.5),
    (7, 2, 0, "constant", 6.612982036244384, 6.893512313054989, 6.893512313054989, 10.246950765959598),
]
EPOCHS, ROUNDS, BETA = 3, 6, 0.9
SETTINGS = (
    f"rounds={ROUNDS}", f"epochs={EPOCHS}", "workload=run", f"momentum={BETA}", "schedule=decay",
)  # fmt: skip


def dense_run():
    """The workload of all rounds of `SETTINGS`, entry by entry: round t holds eta_u beta^(u - s) of row s, s <= u <= t."""
    n = ROUNDS * EPOCHS
    A = np.zeros((n, n))
    for t in range(n):
        for s in range(t + 1):
            A[t, s] = sum((1 - u / n) * BETA ** (u - s) for u in range(s, t + 1))
    return A


def blocks(A):
    """The columns of each epoch."""
    return np.split(A, EPOCHS, axis=1)


@pytest.mark.parametrize(
    ("rounds", "epochs", "beta", "schedule", "best", "epoch_momentum", "epoch_prefix_sum", "independent"), ORACLES
)  # fmt: skip
def test_a_run_costs_what_the_dense_oracles_say(
    rows, rounds, epochs, beta, schedule, best, epoch_momentum, epoch_prefix_sum, independent
):
    table = rows(
        f"rounds={rounds}", f"epochs={epochs}", "workload=run", f"momentum={beta}", f"schedule={schedule}"
    )
    for row in table.values():
        assert row["epochs"] == epochs
        assert row["lower_bound"] == pytest.approx(best, rel=1e-6)
        assert row["lower_bound"] <= best * (1 + 1e-10)
        assert row["relative_gap"] == pytest.approx(row["root_loss"] / row["lower_bound"] - 1)
        assert row["rms_error"] == pytest.approx(row["root_loss"] / np.sqrt(rounds * epochs))
    assert table["optimal"]["root_loss"] == pytest.approx(best, rel=1e-4)
    assert table["optimal"]["root_loss"] >= best
    assert table["optimal_dense"]["root_loss"] == pytest.approx(best, rel=1e-6)
    assert table["independent"]["root_loss"] == pytest.approx(independent, rel=1e-9)
    # The deployed streams are within 1e-4 of the optimum of their epoch; later rounds may see more of that.
    assert table["optimal_for_prefix_sum"]["root_loss"] == pytest.approx(epoch_prefix_sum, rel=1e-3)
    if beta:
        assert table["optimal_for_momentum"]["root_loss"] == pytest.approx(epoch_momentum, rel=1e-3)
    else:
        assert "optimal_for_momentum" not in table


def test_every_family_costs_what_its_exported_stream_does_to_the_dense_run(run, rows, tmp_path):
    table = rows(*SETTINGS, f"export={tmp_path}")
    assert set(table) == {*FAMILIES, "optimal_for_prefix_sum", "optimal_for_momentum"}
    A = dense_run()
    for name, row in table.items():
        with np.load(tmp_path / f"{name}.npz") as arrays:
            decoder, encoder, noise = arrays["decoder"], arrays["encoder"], arrays["noise"]
        assert decoder.shape == (EPOCHS, ROUNDS, encoder.shape[1])
        assert encoder.swapaxes(1, 2).shape == decoder.shape
        assert noise.shape == (EPOCHS, ROUNDS, ROUNDS)
        sensitivities = np.linalg.norm(encoder, axis=1).max(axis=1)
        squares = np.zeros(ROUNDS * EPOCHS)
        for epoch, columns in enumerate(blocks(A)):
            own = columns[epoch * ROUNDS : (epoch + 1) * ROUNDS]
            np.testing.assert_allclose(decoder[epoch] @ encoder[epoch], own, atol=1e-9 * A.max())
            released = columns @ noise[epoch]  # in all rounds of the run: what stays in the model counts
            squares += sensitivities[epoch] ** 2 * np.square(released).sum(axis=1)
        assert row["sensitivity"] == pytest.approx(sensitivities.max(), rel=1e-9), name
        assert row["root_loss"] == pytest.approx(np.sqrt(squares.sum()), rel=1e-9), name
        assert row["rms_error"] == pytest.approx(np.sqrt(squares.mean()), rel=1e-9), name
        assert row["max_error"] == pytest.approx(np.sqrt(squares.max()), rel=1e-9), name


def test_the_nuclear_norm_of_a_run_counts_all_rows_of_each_epochs_columns(rows):
    row = rows(*SETTINGS, "families=[independent]")["independent"]
    norms = [np.linalg.svd(columns, compute_uv=False).sum() for columns in blocks(dense_run())]
    assert row["schatten_bound"] == pytest.approx(np.linalg.norm(norms) / np.sqrt(ROUNDS), rel=1e-9)
    assert row["schatten_bound"] < row["lower_bound"]
    assert row["henzinger_bound"] is None


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_one_epoch_of_a_run_is_the_workload_momentum(rows, schedule):
    given = ("rounds=12", "momentum=0.7", f"schedule={schedule}")
    assert rows(*given, "workload=run") == rows(*given, "workload=momentum")


def test_one_epoch_of_a_run_without_momentum_is_prefix_sums(rows):
    assert rows("rounds=12", "workload=run") == rows("rounds=12")


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (("workload=prefix_sum",), "optimal_for_prefix_sum"),
        (("workload=momentum", "momentum=0.8"), "optimal_for_momentum"),
    ],
)
def test_designs_of_one_epoch_are_restarted_and_costed_on_the_run(rows, tmp_path, given, name):
    size = ("rounds=10", "epochs=4")
    alone = rows(*size, *given, f"export={tmp_path}")
    momentum = given[1:]
    fitted = rows(*size, "workload=run", *momentum)
    for key in ("root_loss", "rms_error", "max_error", "sensitivity", "lower_bound", "epochs"):
        # Without momentum the run lists the optimum of prefix sums, which is then that of the momentum too.
        listed = name if name in fitted else "optimal_for_prefix_sum"
        assert alone["optimal"][key] == pytest.approx(fitted[listed][key], rel=1e-12), key
    assert name not in alone
    with np.load(tmp_path / "optimal.npz") as arrays:
        assert len(arrays["noise"]) == 4
        assert np.all(arrays["noise"] == arrays["noise"][0])


def test_families_are_fitted_to_the_run_or_keep_their_matrix(rows):
    given = ("rounds=16", "epochs=5", "momentum=0.9")
    fitted, alone = rows(*given, "workload=run"), rows(*given, "workload=momentum")
    changed = {name for name in FAMILIES if fitted[name]["root_loss"] < alone[name]["root_loss"] * (1 - 1e-3)}
    assert changed == {"optimal", "optimal_dense", "banded_low_rank", "banded_toeplitz", "blt"}
    for name in set(FAMILIES) - changed:
        assert fitted[name]["root_loss"] == pytest.approx(alone[name]["root_loss"], rel=1e-6)


def test_a_family_of_ones_own_is_fitted_to_every_epoch(rows, tmp_path, monkeypatch):
    (tmp_path / "mine_of_the_mechanisms_tests.py").write_text(
        "import numpy as np\nfrom fedmf.mechanisms import strategy_family\n"
        "def matrix(workload):\n"
        "    return np.eye(workload.rounds) + workload.later.c / 100 * np.eye(workload.rounds, k=-1)\n"
        "FAMILY = strategy_family('mine', matrix)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    table = rows(
        "rounds=5", "epochs=3", "workload=run", "families=[mine_of_the_mechanisms_tests:FAMILY]", f"export={tmp_path}"
    )  # fmt: skip
    S, squares = np.tril(np.ones((15, 15))), 0.0
    with np.load(tmp_path / "mine.npz") as arrays:
        for epoch, (encoder, later) in enumerate(zip(arrays["encoder"], (10, 5, 0), strict=True)):
            C = np.eye(5) + later / 100 * np.eye(5, k=-1)
            np.testing.assert_allclose(encoder, C, atol=1e-6)
            released = S[:, 5 * epoch : 5 * epoch + 5] @ np.linalg.inv(C)
            squares += np.linalg.norm(C, axis=0).max() ** 2 * np.square(released).sum()
    assert list(table) == ["mine"]
    assert table["mine"]["root_loss"] == pytest.approx(np.sqrt(squares), rel=1e-5)
    assert table["mine"]["sensitivity"] == pytest.approx(np.sqrt(1.01), rel=1e-6)  # that of the first epoch
    assert (
        table["mine"]["henzinger_bound"] is None
    )  # it is for one epoch of prefix sums, not for a run of them


def test_buffers_reach_every_epoch_of_a_run(rows):
    table = rows("rounds=32", "epochs=3", "workload=run", "buffers=1", "families=[optimal,blt,independent]")
    assert [row["buffers"] for row in table.values()] == [1, 1, 0]


def test_the_tables_title_says_what_run_it_is_and_what_was_fitted(run):
    given = ("rounds=4", "epochs=3", "families=[independent]")
    assert (
        "the whole run: 3 epochs of 4 rounds, prefix sums, fitted to the run"
        in run(*given, "workload=run")[1]
    )
    assert "prefix sums, fitted to one epoch alone" in run(*given)[1]
    late = run("rounds=4", "epochs=8", "workload=run", "schedule=cooldown", "families=[independent]")[1]
    assert "momentum 0.0, falling learning rate" in late  # it falls in the last epochs only


def test_the_plot_shows_every_round_of_the_run_its_epochs_and_the_least_error():
    workloads = of_run(5, 4, 0.9)
    runs = {name: design_run(name, workloads) for name in ("optimal", "independent")}
    lower = run_lower_bound(workloads)
    (axes,) = plots.error_by_round(runs, lower).axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    for name, run in runs.items():
        np.testing.assert_array_equal(lines[name].get_xdata(), np.arange(1, 21))
        np.testing.assert_array_equal(lines[name].get_ydata(), run.per_round_error)
    least = lines["least possible, root mean square"].get_ydata()
    assert least[0] == least[1] == pytest.approx(lower / np.sqrt(20))
    upright = [
        line for line in axes.get_lines() if len(line.get_xdata()) == 2 and len(set(line.get_xdata())) == 1
    ]
    assert [line.get_xdata()[0] for line in upright] == [6, 11, 16]
    assert axes.get_title() == "4 epochs of 5 rounds, momentum 0.9, constant learning rate"
    assert len(axes.get_legend().get_texts()) == 3


def test_heat_maps_show_what_an_epoch_leaves_in_later_ones():
    run = design_run("optimal", of_run(4, 3, 0.5))
    with matplotlib.rc_context(plots.STYLE):
        decoder, encoder = (axes.images[0].get_array() for axes in plots.heat_maps("optimal", run).axes[:2])
    assert decoder.shape == encoder.shape == (12, 12)
    assert not np.ma.getmaskarray(decoder)[4:, :4].any()
    assert np.ma.getmaskarray(encoder)[4:, :4].all()


def test_plots_of_a_run_are_written(run, tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "LARGEST_TREE", 64)
    monkeypatch.setattr(plots, "LARGEST_HEAT_MAP", 23)  # one epoch would be small enough, the run is not
    given = ("rounds=8", "epochs=3", "workload=run", "families=[optimal]")
    assert run(*given, f"plots={tmp_path}")[0] == 0
    assert {file.name for file in tmp_path.iterdir()} == {"error_by_round.png", "error_by_rounds.png"}


@pytest.mark.parametrize(
    ("rounds", "epochs", "allowed"), [(4096, 1, True), (2048, 4, True), (2048, 5, False)]
)
def test_exports_have_at_most_the_numbers_of_one_long_epoch(rounds, epochs, allowed):
    if allowed:
        export.check_exportable(rounds, epochs)
    else:
        with pytest.raises(ValueError, match="at most 4 epochs as long"):
            export.check_exportable(rounds, epochs)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("epochs=0",), "epochs is 0"),
        (("epochs=-2", "workload=run"), "epochs is -2"),
        (("epochs=0", "workload=run", "schedule=decay"), "epochs is 0"),
        (("epochs=1.5",), "epochs"),
        (
            ("epochs=2", "momentum=0.9"),
            "momentum is 0.9 and schedule constant with workload=prefix_sum",
        ),
        (("epochs=2", "schedule=decay"), "schedule decay with workload=prefix_sum"),
        (("epochs=2", "workload=momentum", "schedule=decay"), "with workload=momentum and 2 epochs"),
        (("epochs=2", "workload=run", "momentum=1"), "momentum is 1.0"),
        (("epochs=2", "workload=run", "schedule=linear"), "schedule is 'linear'"),
        (("epochs=2", "workload=run", "rounds=513", "families=[optimal_dense]"), "at most 512 rounds"),
        (("epochs=2", "workload=run", "rounds=4096", "export=/nowhere"), "epochs is 2 with 4096 rounds each"),
        (("epochs=2", "workload=run", "rounds=8", "buffers=9", "families=[optimal]"), "buffers is 9"),
    ],
)
def test_mistakes_about_runs_exit_2_with_a_sentence(run, arguments, message):
    code, out, err = run(*arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert message in err
