"""The plots and tables of a comparison: drawn where a sweep varies what they show, with bands over seeds."""

import pytest

import written_run
from experiments.pages.comparison import read_comparison
from experiments.pages.comparison_page import MOST_LINES, by_round_sections, measured_sections, runs_section

EPSILON, SENT, KEEP = (
    f"accuracy_against_{words}" for words in ("epsilon_spent", "bytes_sent_by_a_client", "keep_probability")
)
TWO = ("blt", "optimal")


def groups(directory):
    return read_comparison(directory).groups


def plots(directory, *sweep):
    """Return the plots of accuracy against what the groups of a sweep differ in, by name."""
    if sweep:
        written_run.sweep(directory, *sweep)
    return {section.plot.name: section.plot for section in measured_sections(groups(directory))}


def test_accuracy_against_epsilon_has_a_line_for_each_mechanism_with_its_error(tmp_path):
    drawn = plots(tmp_path, TWO, (2.0, 8.0, 32.0))
    assert list(drawn) == [EPSILON]  # neither bytes nor keep probability are varied
    plot = drawn[EPSILON]
    assert [line.label for line in plot.series] == ["blt", "optimal"]
    for place, line in enumerate(plot.series):
        assert list(line.x) == pytest.approx([2.0, 8.0, 32.0], rel=1e-3)
        assert list(line.y) == pytest.approx([100 * (0.53 + 0.1 * place + 0.01 * x) for x in (2, 8, 32)])
        assert line.error == pytest.approx([1.0] * 3)  # of 0.02 apart: half the distance
    assert (plot.x_label, plot.y_label, plot.log) == ("epsilon spent", "test accuracy (%)", True)


def test_what_else_differs_makes_its_own_lines_and_bytes_are_those_of_every_epoch(tmp_path):
    drawn = plots(tmp_path / "one", TWO, (8.0,), (0.1, 0.5))
    assert list(drawn) == [SENT, KEEP]
    sent = [2 * (5000 * keep + 512) for keep in (0.1, 0.5)]  # two epochs; an envelope has 512
    for name, x in ((SENT, sent), (KEEP, [0.1, 0.5])):
        assert [line.label for line in drawn[name].series] == ["blt", "optimal"]
        assert all(list(line.x) == pytest.approx(x) for line in drawn[name].series)
    drawn = plots(tmp_path / "two", TWO, (2.0, 8.0), (0.1, 0.5))
    assert list(drawn) == [EPSILON, SENT, KEEP]
    assert [line.label for line in drawn[EPSILON].series] == [
        f"keep probability = {keep}, mechanism = {name}" for keep in (0.1, 0.5) for name in TWO
    ]
    assert [len(line.x) for line in drawn[SENT].series] == [2] * 4


def test_epsilons_that_differ_by_calibration_alone_are_not_varied(tmp_path):
    assert plots(tmp_path, ("blt", "independent")) == {}


def test_a_group_without_epsilon_is_named_not_drawn(tmp_path):
    written_run.sweep(tmp_path, ("optimal",), (2.0, 8.0))
    config = {"privacy": {"noise_multiplier": 0, "delta": 1e-4}, "mechanism": {"name": "optimal"}}
    written_run.write(tmp_path / "open", config=config, summary={"epsilon": None})
    assert "1 of the groups have none and are not drawn." in plots(tmp_path)[EPSILON].caption


def test_curves_by_round_and_bytes_have_the_mean_and_the_error_over_seeds(tmp_path):
    sections = by_round_sections(groups(written_run.sweep(tmp_path)))
    (line,), (sent,) = (section.plot.series for section in sections)
    assert list(line.x) == [1, 2, 3, 4, 5, 6]
    assert list(sent.x) == pytest.approx([64 * 921.6 * number for number in line.x])
    assert (sent.y, sent.error) == (line.y, line.error)
    assert line.y[-1] == pytest.approx(61)
    assert line.error == pytest.approx([0, 0, 0, 0, 0, 1.0])


def test_the_table_of_runs_has_the_settings_that_differ_and_the_files(tmp_path):
    table = runs_section(read_comparison(written_run.sweep(tmp_path, TWO, (2.0, 8.0)))).table
    assert table.header == ("mechanism", "epsilon", "seed", "accuracy", "epsilon spent", "from")
    assert table.rows[-1] == ("optimal", "8", "2", "72.0 %", "7.995", "optimal-8.0-0.1-2/summary.json")
    assert table.numbers == [1, 2, 3, 4]  # words are set left, numbers right


def test_more_lines_than_looks_are_counted_and_named(tmp_path):
    (plot,) = plots(tmp_path, tuple(f"m{number}" for number in range(MOST_LINES + 1)), (2.0, 8.0)).values()
    # m0 is the worst, the last the best
    assert [line.label for line in plot.series] == [f"m{number}" for number in range(1, MOST_LINES + 1)]
    left_out = f"{MOST_LINES} of {MOST_LINES + 1} lines, those that get highest; not drawn: m0."
    assert left_out in plot.caption
    caption = by_round_sections(groups(tmp_path))[0].plot.caption
    assert f"{MOST_LINES} of {2 * MOST_LINES + 2} lines" in caption
    assert "mechanism = m0, epsilon = 2" in caption


@pytest.mark.parametrize(
    ("keeps", "labels"), [((0.1,), ["all runs"]), ((0.1, 0.5), ["epochs = 1", "epochs = 2", "epochs = 4"])]
)
def test_epochs_are_one_line_where_they_alone_vary_bytes_and_others_where_compression_is_varied(
    tmp_path, keeps, labels
):
    for epochs in (1, 2, 4):
        for keep in keeps:
            config = {
                "population": {"epochs": epochs},
                "privacy": {"noise_multiplier": 0.2, "delta": 1e-4},
                "compression": {"keep_probability": keep, "rotation": "identity"},
            }
            summary = {"epochs": epochs, "uplink_bytes_per_client": 5000 * keep, "epsilon": 2.0 * epochs}
            written_run.write(tmp_path / f"{epochs}-{keep}", config=config, summary=summary)
    drawn = plots(tmp_path)
    assert [line.label for line in drawn[SENT].series] == labels
    assert [list(line.x) for line in drawn[EPSILON].series] == [[2.0, 4.0, 8.0]] * len(keeps)
    sent = [1012, 2024, 4048] if len(keeps) == 1 else [1012, 3012]
    assert list(drawn[SENT].series[0].x) == pytest.approx(sent)
