"""The loggers send the rows of metrics.jsonl and are closed; recorders stand in for the packages."""

import contextlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import runs
import written_run
from experiments.session.monitoring import LoggerName, open_logger, tag
from fedmf.errors import SettingError

ROWS = written_run.metrics(private=False)[:2]


class Recorder:
    """Stands for a writer of any of the packages."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self.sent: list[tuple[int, str, float]] = []
        self.made = (arguments, settings)
        self.closed = False

    def add_scalar(self, key: str, value: float, step: int) -> None:
        self.sent.append((step, key, value))

    def log_metrics(self, values: dict[str, float], step: int) -> None:
        self.sent += [(step, key, value) for key, value in values.items()]

    log = log_metrics

    def close(self) -> None:
        self.closed = True

    finish = close

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *error: object) -> None:
        self.closed = True


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """One recorder behind the names that each package uses."""
    recorder = Recorder()
    packages = {
        "torch.utils.tensorboard": {"SummaryWriter": lambda path: recorder},
        "mlflow": {"start_run": lambda run_name: recorder, "log_metrics": recorder.log_metrics},
        "wandb": {"init": lambda project, name, dir: recorder},
    }
    for name, contents in packages.items():
        module = ModuleType(name)
        module.__dict__.update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    return recorder


@pytest.mark.parametrize("name", [LoggerName.tensorboard, LoggerName.mlflow, LoggerName.wandb])
def test_every_row_is_sent_at_its_round_without_missing_numbers_and_the_logger_is_closed(
    tmp_path: Path, name: LoggerName, recorder: Recorder
) -> None:
    with contextlib.suppress(ZeroDivisionError), open_logger(name, tmp_path) as log:
        for row in ROWS:
            log(row)
        assert not recorder.closed
        _ = 1 / 0  # a run that fails still closes its logger
    assert recorder.closed
    name_of = tag if name is LoggerName.tensorboard else str
    sent = [(row["round"], name_of("accuracy"), row["accuracy"]) for row in ROWS]
    assert set(sent) <= set(recorder.sent)
    expected = {name_of(key) for key in set(ROWS[0]) - {"round", "epsilon"}}
    assert {key for _, key, _ in recorder.sent} == expected


def test_tensorboards_tags_are_grouped_and_every_number_of_a_run_has_one(
    tmp_path: Path, recorder: Recorder
) -> None:
    """Of a real run; docs/data.md names the groups."""
    small = ("population.epochs=1", "population.rounds_per_epoch=2", "population.cohort_size=8")
    directory = runs.run(tmp_path / "r", *small, "logger=tensorboard", "metrics=[accuracy,top5]")
    last = runs.metrics(directory)[-1]
    tags = {name for _, name, _ in recorder.sent}
    assert tags == {tag(key) for key in [*last, "seconds", "noise_error"] if key != "round"}
    assert {"score/accuracy", "score/loss", "score/top5", "privacy/epsilon", "bytes/uplink"} < tags
    assert {name.split("/")[0] for name in tags} == {"score", "privacy", "bytes", "noise", "round"}
    page = (runs.CONF.parent / "docs" / "data.md").read_text()
    assert all(f"`{name.split('/')[0]}/" in page for name in tags)
    errors = json.loads((directory / "mechanism.json").read_text())["per_round_error"]
    assert [value for _, name, value in recorder.sent if name == "noise/error"] == errors
    assert (2, "score/accuracy", last["accuracy"]) in recorder.sent


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with (
        pytest.raises(SettingError, match=r"needs the package mlflow.*fedmf\[mlflow\]"),
        open_logger(LoggerName.mlflow, tmp_path),
    ):
        pass
