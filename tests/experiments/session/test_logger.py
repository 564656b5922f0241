"""The loggers send the rows of metrics.jsonl and are closed; recorders stand in for the packages."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import written_run
from experiments.session.logger import LoggerName, open_logger
from fedmf.errors import SettingError

ROWS = written_run.metrics(private=False)[:2]
SENT = [(row["round"], "accuracy", row["accuracy"]) for row in ROWS]


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
def test_every_row_is_sent_at_its_round_without_missing_numbers(
    tmp_path: Path, name: LoggerName, recorder: Recorder
) -> None:
    with open_logger(name, tmp_path) as log:
        for row in ROWS:
            log(row)
        assert not recorder.closed
    assert recorder.closed
    assert set(SENT) <= set(recorder.sent)
    assert {key for _, key, _ in recorder.sent} == set(ROWS[0]) - {"round", "epsilon"}


@pytest.mark.parametrize("name", [LoggerName.tensorboard, LoggerName.mlflow, LoggerName.wandb])
def test_a_run_that_fails_still_closes_its_logger(
    tmp_path: Path, name: LoggerName, recorder: Recorder
) -> None:
    with pytest.raises(ZeroDivisionError), open_logger(name, tmp_path):
        _ = 1 / 0
    assert recorder.closed


def test_without_a_logger_nothing_is_written(tmp_path: Path) -> None:
    with open_logger(LoggerName.none, tmp_path) as log:
        log(ROWS[0])
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with (
        pytest.raises(SettingError, match=r"needs the package mlflow.*fedmf\[mlflow\]"),
        open_logger(LoggerName.mlflow, tmp_path),
    ):
        pass
