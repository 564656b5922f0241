"""The plots and tables of a comparison: drawn where a sweep varies what they show, with bands over seeds."""

import pytest

import written_run
from experiments.pages.comparison import read_comparison
from experiments.pages.comparison_page import MOST_LINES, by_round_sections, measured_sections, runs_section

BYTES = {0.1: 900.0, 0.5: 2500.0}
EPSILON, SENT, KEEP = (
    f"accuracy_against_{words}" for words in ("epsilon_spent", "bytes_sent_by_a_client", "keep_probability")
)


def sweep(directory, mechanisms, epsilons, keeps):
    """Write runs of all combinations with two seeds, 0.02 apart in accuracy, and return the directory."""
    for mechanism in mechanisms:
        for epsilon in epsilons:
            for keep in keeps:
                for seed in (1, 2):
                    accuracy = 0.5 + 0.1 * mechanisms.index(mechanism) + 0.01 * epsilon + 0.02 * seed
                    written_run.write(
                        directory / f"{mechanism}-{epsilon}-{keep}-{seed}",
                        config={
                            "seed": seed,
                            "mechanism": {"name": mechanism},
                            "privacy": {"epsilon": epsilon, "delta": 1e-4},
                            "compression": {"keep_probability": keep, "rotation": "identity"},
                        },
                        # A calibration ends close to its target, at another distance for each mechanism.
                        summary={
                            "accuracy": accuracy,
                            "epsilon": epsilon * (1 - 1e-4 * len(mechanism)),
                            "uplink_bytes_per_client": BYTES[keep],
                            "keep_probability": keep,
                        },
                        metrics=written_run.metrics(accuracies=(0.2, 0.3, 0.4, 0.45, 0.5, accuracy)),
                    )
    return directory


def groups(directory):
    return read_comparison(directory).groups


def plots(directory):
    """Return the plots of accuracy against what the groups differ in, by name."""
    return {section.plot.name: section.plot for section in measured_sections(groups(directory))}


def test_accuracy_against_epsilon_has_a_line_for_each_mechanism_with_its_error(tmp_path):
    drawn = plots(sweep(tmp_path, ("blt", "optimal"), (2.0, 8.0, 32.0), (0.1,)))
    assert list(drawn) == [EPSILON]  # neither bytes nor keep probability are varied
    plot = drawn[EPSILON]
    assert [line.label for line in plot.series] == ["blt", "optimal"]
    for place, line in enumerate(plot.series):
        assert list(line.x) == pytest.approx([2.0, 8.0, 32.0], rel=1e-3)
        assert list(line.y) == pytest.approx([100 * (0.53 + 0.1 * place + 0.01 * x) for x in (2, 8, 32)])
        assert line.error == pytest.approx([1.0] * 3)  # of 0.02 apart: half the distance
    assert (plot.x_label, plot.y_label, plot.log) == ("epsilon spent", "test accuracy (%)", True)


def test_what_else_differs_makes_its_own_lines_and_bytes_are_those_of_every_epoch(tmp_path):
    drawn = plots(sweep(tmp_path / "one", ("blt", "optimal"), (8.0,), (0.1, 0.5)))
    assert list(drawn) == [SENT, KEEP]
    assert [line.label for line in drawn[SENT].series] == ["blt", "optimal"]
    sent = [2 * (BYTES[keep] + 512) for keep in (0.1, 0.5)]  # two epochs; an envelope has 512
    assert all(list(line.x) == pytest.approx(sent) for line in drawn[SENT].series)
    assert drawn[SENT].bytes_on == "x"
    assert all(list(line.x) == [0.1, 0.5] for line in drawn[KEEP].series)
    drawn = plots(sweep(tmp_path / "two", ("blt", "optimal"), (2.0, 8.0), (0.1, 0.5)))
    assert list(drawn) == [EPSILON, SENT, KEEP]
    assert [line.label for line in drawn[EPSILON].series] == [
        f"keep probability = {keep}, mechanism = {name}" for keep in (0.1, 0.5) for name in ("blt", "optimal")
    ]
    assert [len(line.x) for line in drawn[SENT].series] == [2] * 4


def test_epsilons_that_differ_by_calibration_alone_are_not_varied(tmp_path):
    assert plots(sweep(tmp_path, ("blt", "independent"), (8.0,), (0.1,))) == {}


def test_a_group_without_epsilon_is_named_not_drawn(tmp_path):
    sweep(tmp_path, ("blt",), (2.0, 8.0), (0.1,))
    written_run.write(
        tmp_path / "open", config={"privacy": {"noise_multiplier": 0, "delta": 1e-4}, "mechanism": {"name": "blt"},
                                   "compression": {"keep_probability": 0.1, "rotation": "identity"}},
        summary={"epsilon": None})  # fmt: skip
    assert "1 of the groups have none and are not drawn." in plots(tmp_path)[EPSILON].caption


def test_curves_by_round_and_bytes_have_the_mean_and_the_error_over_seeds(tmp_path):
    sections = by_round_sections(groups(sweep(tmp_path, ("blt",), (8.0,), (0.1,))))
    (line,), (sent,) = (section.plot.series for section in sections)
    assert list(line.x) == [1, 2, 3, 4, 5, 6]
    assert list(sent.x) == pytest.approx([64 * 921.6 * number for number in line.x])
    assert (sent.y, sent.error) == (line.y, line.error)
    assert line.y[-1] == pytest.approx(61)
    assert line.error == pytest.approx([0, 0, 0, 0, 0, 1.0])


def test_the_table_of_runs_has_the_settings_that_differ_and_the_files(tmp_path):
    table = runs_section(read_comparison(sweep(tmp_path, ("blt", "optimal"), (2.0, 8.0), (0.1,)))).table
    assert table.header == ("mechanism", "epsilon", "seed", "accuracy", "epsilon spent", "from")
    assert table.rows[-1] == ("optimal", "8", "2", "72.0 %", "7.995", "optimal-8.0-0.1-2/summary.json")
    assert table.numbers == [1, 2, 3, 4]  # words are set left, numbers right


def test_more_lines_than_looks_are_counted_and_named(tmp_path):
    sweep(tmp_path, tuple(f"m{number}" for number in range(MOST_LINES + 1)), (2.0, 8.0), (0.1,))
    (plot,) = plots(tmp_path).values()  # m0 is the worst, the last the best
    assert [line.label for line in plot.series] == [f"m{number}" for number in range(1, MOST_LINES + 1)]
    left_out = f"{MOST_LINES} of {MOST_LINES + 1} lines, those that get highest; not drawn: "
    assert f"{left_out}m0." in plot.caption
    caption = by_round_sections(groups(tmp_path))[0].plot.caption
    assert f"{MOST_LINES} of {2 * MOST_LINES + 2} lines" in caption
    assert "mechanism = m0, epsilon = 8 …. From" in caption or "mechanism = m0, epsilon = 2. From" in caption


@pytest.mark.parametrize(
    ("keeps", "labels"), [((0.1,), ["all runs"]), ((0.1, 0.5), ["epochs = 1", "epochs = 2", "epochs = 4"])]
)
def test_epochs_are_one_line_where_they_alone_vary_bytes_and_others_where_compression_is_varied(
    tmp_path, keeps, labels
):
    for epochs in (1, 2, 4):
        for keep in keeps:
            written_run.write(
                tmp_path / f"{epochs}-{keep}",
                config={
                    "population": {"epochs": epochs},
                    "privacy": {"noise_multiplier": 0.2, "delta": 1e-4},
                    "compression": {"keep_probability": keep, "rotation": "identity"},
                },
                summary={
                    "epochs": epochs,
                    "uplink_bytes_per_client": BYTES[keep],
                    "epsilon": 2.0 * epochs,
                    "keep_probability": keep,
                },
            )
    drawn = plots(tmp_path)
    assert [line.label for line in drawn[SENT].series] == labels
    assert [list(line.x) for line in drawn[EPSILON].series] == [[2.0, 4.0, 8.0]] * len(keeps)
    sent = [1412, 2824, 5648] if len(keeps) == 1 else [1412, 3012]
    assert list(drawn[SENT].series[0].x) == pytest.approx(sent)
