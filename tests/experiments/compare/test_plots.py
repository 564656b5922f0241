"""The plots of a comparison: drawn whenever a sweep varies what they show, with bands over seeds."""

from pathlib import Path

import pytest

import written_run
from experiments.compare.__main__ import CompareSettings, compare
from experiments.compare.groups import Group, find_runs, group_runs
from experiments.compare.plots import MOST_LINES, accuracy_section, bytes_section, measured_sections
from experiments.pages.figures import LinePlot, Scale
from experiments.settings.compose import compose

BYTES = {0.1: 900.0, 0.5: 2500.0}


def sweep(
    directory: Path, mechanisms: tuple[str, ...], epsilons: tuple[float, ...], keeps: tuple[float, ...]
) -> list[Group]:
    """Write runs of all combinations with two seeds, 0.02 apart in accuracy, and return them as groups."""
    for mechanism in mechanisms:
        for epsilon in epsilons:
            for keep in keeps:
                for seed in (1, 2):
                    accuracy = 0.5 + 0.1 * mechanisms.index(mechanism) + 0.01 * epsilon + 0.02 * seed
                    lines = written_run.metrics(accuracies=(0.2, 0.3, 0.4, 0.45, 0.5, accuracy))
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
                        },
                        metrics=lines,
                    )
    return group_runs(find_runs(directory)[0])


def plots(groups: list[Group]) -> dict[str, LinePlot]:
    """Return the plots of accuracy against what the groups differ in, by name."""
    drawn = {}
    for section in measured_sections(groups):
        assert section.figure is not None
        assert isinstance(section.figure.drawing, LinePlot)
        drawn[section.figure.name] = section.figure.drawing
    return drawn


def test_accuracy_against_epsilon_has_a_line_for_each_mechanism_with_its_error(tmp_path: Path) -> None:
    drawn = plots(sweep(tmp_path, ("blt", "optimal"), (2.0, 8.0, 32.0), (0.1,)))
    assert list(drawn) == ["epsilon"]  # neither bytes nor keep probability are varied
    plot = drawn["epsilon"]
    assert [line.label for line in plot.series] == ["blt", "optimal"]
    for place, line in enumerate(plot.series):
        assert list(line.x) == pytest.approx([2.0, 8.0, 32.0], rel=1e-3)
        assert list(line.y) == pytest.approx([100 * (0.53 + 0.1 * place + 0.01 * x) for x in (2, 8, 32)])
        assert line.error == pytest.approx([1.0] * 3)  # of 0.02 apart: half the distance
    assert (plot.x_label, plot.y_label, plot.x_scale) == ("epsilon spent", "test accuracy (%)", Scale.log)


def test_accuracy_against_bytes_counts_what_a_client_sends_that_takes_part_in_every_epoch(
    tmp_path: Path,
) -> None:
    drawn = plots(sweep(tmp_path, ("blt", "optimal"), (8.0,), (0.1, 0.5)))
    assert list(drawn) == ["sent", "keep"]
    plot = drawn["sent"]
    assert [line.label for line in plot.series] == ["blt", "optimal"]
    sent = [2 * (BYTES[keep] + 512) / 1000 for keep in (0.1, 0.5)]  # two epochs; an envelope has 512
    assert [list(line.x) for line in plot.series] == [pytest.approx(sent)] * 2
    assert plot.x_label == "sent by a client that takes part in every epoch (kB)"
    assert plot.series[0].error == pytest.approx([1.0, 1.0])


def test_what_differs_besides_makes_lines_of_its_own(tmp_path: Path) -> None:
    drawn = plots(sweep(tmp_path, ("blt", "optimal"), (2.0, 8.0), (0.1, 0.5)))
    assert list(drawn) == ["epsilon", "sent", "keep"]
    assert [line.label for line in drawn["epsilon"].series] == [
        f"keep probability = {keep}, mechanism = {name}" for keep in (0.1, 0.5) for name in ("blt", "optimal")
    ]
    assert [len(line.x) for line in drawn["sent"].series] == [2] * 4


def test_epsilons_that_differ_by_calibration_alone_are_not_varied(tmp_path: Path) -> None:
    assert plots(sweep(tmp_path, ("blt", "independent"), (8.0,), (0.1,))) == {}


def test_a_group_without_epsilon_is_named_not_drawn(tmp_path: Path) -> None:
    sweep(tmp_path, ("blt",), (2.0, 8.0), (0.1,))
    written_run.write(
        tmp_path / "open", config={"privacy": {"noise_multiplier": 0, "delta": 1e-4}, "mechanism": {"name": "blt"},
                                   "compression": {"keep_probability": 0.1, "rotation": "identity"}},
        summary={"epsilon": None})  # fmt: skip
    (section, *_) = measured_sections(group_runs(find_runs(tmp_path)[0]))
    assert section.figure is not None
    assert "1 of the groups have none and are not drawn." in section.figure.caption


def test_curves_by_round_have_the_mean_and_the_error_over_seeds(tmp_path: Path) -> None:
    section = accuracy_section(sweep(tmp_path, ("blt",), (8.0,), (0.1,)))
    assert section.figure is not None
    assert isinstance(section.figure.drawing, LinePlot)
    (line,) = section.figure.drawing.series
    assert list(line.x) == [1, 2, 3, 4, 5, 6]
    assert line.y[-1] == pytest.approx(61)
    assert line.error == pytest.approx([0, 0, 0, 0, 0, 1.0])


def test_the_table_of_runs_has_the_settings_that_differ(tmp_path: Path) -> None:
    sweep(tmp_path, ("blt", "optimal"), (2.0, 8.0), (0.1,))
    compare(compose("compare", [f"directory={tmp_path}", "output=json"], CompareSettings))
    html = (tmp_path / "compare.html").read_text()
    runs = html[html.index("<h2>Runs</h2>") :]
    header = ("run", "mechanism", "epsilon", "seed", "accuracy", "epsilon spent", "from")
    assert [runs.index(f">{name}</th>") for name in header] == sorted(
        runs.index(f">{name}</th>") for name in header
    )
    row = next(line for line in runs.splitlines() if "optimal-8.0-0.1-2/summary.json" in line)
    assert ">optimal</td>" in row
    assert ">8</td>" in row
    assert 'class="text" data-label="mechanism">optimal</td>' in row  # words are set left, numbers right
    assert 'class="number" data-label="epsilon">8' in row


def test_more_lines_than_looks_are_counted(tmp_path: Path) -> None:
    groups = sweep(tmp_path, tuple(f"m{number}" for number in range(MOST_LINES + 1)), (2.0, 8.0), (0.1,))
    (plot,) = plots(groups).values()  # m0 is the worst, the last the best
    assert [line.label for line in plot.series] == [f"m{number}" for number in range(1, MOST_LINES + 1)]
    (section,) = measured_sections(groups)
    assert section.figure is not None
    left_out = f"{MOST_LINES} of {MOST_LINES + 1} lines, those that get highest; not drawn: "
    assert f"{left_out}m0." in section.figure.caption
    rounds = accuracy_section(groups).figure
    assert rounds is not None
    assert f"{MOST_LINES} of {2 * MOST_LINES + 2} lines" in rounds.caption
    assert "mechanism = m0, epsilon = 8 and 1 more. The legend" in rounds.caption


def write_epochs(directory: Path, *, keeps: tuple[float, ...], privacy: dict[str, float]) -> list[Group]:
    """Write runs of 1, 2 and 4 epochs, which spend and send the more, and return them as groups."""
    for epochs in (1, 2, 4):
        for keep in keeps:
            written_run.write(
                directory / f"{epochs}-{keep}",
                config={
                    "population": {"epochs": epochs},
                    "privacy": {**privacy, "delta": 1e-4},
                    "compression": {"keep_probability": keep, "rotation": "identity"},
                },
                summary={"epochs": epochs, "uplink_bytes_per_client": BYTES[keep], "epsilon": 2.0 * epochs},
            )
    return group_runs(find_runs(directory)[0])


def test_a_sweep_of_epochs_is_one_line_against_what_epochs_alone_vary(tmp_path: Path) -> None:
    drawn = plots(write_epochs(tmp_path, keeps=(0.1,), privacy={"noise_multiplier": 0.2}))
    assert [[list(line.x) for line in drawn[name].series] for name in ("epsilon", "sent")] == [
        [[2.0, 4.0, 8.0]],
        [pytest.approx([1.412, 2.824, 5.648])],
    ]


def test_where_compression_is_varied_too_runs_of_other_epochs_are_another_line(tmp_path: Path) -> None:
    drawn = plots(write_epochs(tmp_path, keeps=(0.1, 0.5), privacy={"noise_multiplier": 0.2}))
    assert [line.label for line in drawn["sent"].series] == ["epochs = 1", "epochs = 2", "epochs = 4"]
    assert [len(line.x) for line in drawn["sent"].series] == [2, 2, 2]


def scored_on(directory: Path, *parts: int) -> list[Group]:
    """Write runs of two seeds that were scored on so many of 360 examples before their last round."""
    for part in parts:
        for seed in (1, 2):
            lines = [{**line, "test_examples": part} for line in written_run.metrics()]
            written_run.write(
                directory / f"{part}-{seed}",
                config={"seed": seed, "run": {"evaluation_examples": part}},
                summary={"test_examples": 360, "evaluation_examples": part},
                metrics=lines,
            )
    return group_runs(find_runs(directory)[0])


def test_runs_scored_on_unlike_numbers_of_examples_are_no_repetitions_and_that_is_said(
    tmp_path: Path,
) -> None:
    groups = scored_on(tmp_path, 60, 360)
    assert [(group.label, len(group.runs)) for group in groups] == [
        ("evaluation examples = 60", 2),
        ("evaluation examples = 360", 2),
    ]
    for section in (accuracy_section(groups), *bytes_section(groups, 0.5)):
        assert section.figure is not None
        assert "Before the last round scored on 60 of 360 test examples" in section.figure.caption
        assert "standard error of at most 5.90 points" in section.figure.caption
        assert "runs differ in that, and their rounds are not scored alike" in section.figure.caption


def test_runs_scored_on_all_examples_need_no_word_about_it(tmp_path: Path) -> None:
    (group,) = scored_on(tmp_path, 360)
    for section in (accuracy_section([group]), *bytes_section([group], 0.5)):
        assert section.figure is not None
        assert "Before the last round" not in section.figure.caption
