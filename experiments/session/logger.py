"""Sending metrics elsewhere: TensorBoard, MLflow or Weights & Biases, through one small hook, off by default.

A logger receives the rows of metrics.jsonl as they are released, with the error of the round from mechanism.json as
`noise_error`, and nothing else: what it sends is what the run directory holds anyway. The packages are extras of their own and are imported only when asked for.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from client.imports import need
from experiments.settings.schema import LoggerName

# Takes one row of metrics.jsonl, and sends its numbers at the step `row["round"]`.
Log = Callable[[Mapping[str, Any]], object]

# The tags of TensorBoard, which shows what stands before the slash as a group; whatever else a row holds is a score.
TAGS = {
    "epsilon": "privacy/epsilon",
    "uplink_bytes": "bytes/uplink",
    "downlink_bytes": "bytes/downlink",
    "measured_value_bytes": "unprotected/value_bytes",
    "noise_error": "noise/error",
    "epoch": "round/epoch",
    "step": "round/step",
    "cohort_size": "round/cohort_size",
    "replies": "round/replies",
    "seconds": "round/seconds",
    "test_examples": "round/test_examples",
}

MODULES = {
    LoggerName.tensorboard: "torch.utils.tensorboard",
    LoggerName.mlflow: "mlflow",
    LoggerName.wandb: "wandb",
}


def import_logger(name: LoggerName) -> Any:
    """Return the package of the logger called `name`, None for none.

    Raises `SettingError` when it is not installed.
    """
    if name not in MODULES:
        return None
    return need(MODULES[name], f"logger={name.value}", extra=name.value)


@contextmanager
def open_logger(name: LoggerName, directory: Path) -> Iterator[Log]:
    """Yield the logger called `name` for the run in `directory`, and close it at the end.

    TensorBoard writes below `directory`/tensorboard; the others go where their own environment variables say.
    Raises `SettingError` when the package is not installed.
    """
    module = import_logger(name)
    if name is LoggerName.tensorboard:
        with closing(module.SummaryWriter(str(directory / "tensorboard"))) as writer:
            yield lambda row: [writer.add_scalar(tag(k), v, row["round"]) for k, v in numbers(row).items()]
    elif name is LoggerName.mlflow:
        with module.start_run(run_name=directory.name):
            yield lambda row: module.log_metrics(numbers(row), step=row["round"])
    elif name is LoggerName.wandb:
        with module.init(project="fedmf", name=directory.name, dir=str(directory)) as run:
            yield lambda row: run.log(numbers(row), step=row["round"])
    else:
        yield lambda row: None


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a row, the round apart.

    >>> numbers({"round": 3, "accuracy": 0.5, "epsilon": None})
    {'accuracy': 0.5}
    """
    return {key: value for key, value in row.items() if key != "round" and isinstance(value, int | float)}


def tag(key: str) -> str:
    """Return the tag of a number of a row in TensorBoard.

    >>> tag("accuracy"), tag("uplink_bytes")
    ('score/accuracy', 'bytes/uplink')
    """
    return TAGS.get(key, f"score/{key}")
