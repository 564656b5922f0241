"""The settings of commands that take long to import: `--help` reads them here."""

from dataclasses import dataclass

from client.metric_names import METRICS
from experiments.settings.data import DatasetSettings, ModelSettings
from experiments.settings.output import PRINTED, Output
from fedmf.mechanisms import FAMILIES
from fedmf.setting import REQUIRED, setting

FORMATS = ("torch", "safetensors", "onnx")
"""What a model is exported as."""


@dataclass(frozen=True)
class EvaluateSettings:
    """Keys of the command."""

    directory: str = setting(REQUIRED, "folder of the run whose model is scored")
    batch_size: int = setting(256, "examples that are scored at once")
    metrics: tuple[str, ...] | None = setting(
        None,
        "metrics besides accuracy and loss, such as [f1,MODULE:FUNCTION]; null: those that the run recorded",
        METRICS,
    )
    trust_code: bool = setting(
        False,
        "true: import the loader, the model and the metrics that the directory's config.yaml names by "
        "import path",
    )
    output: Output = setting(Output.text, PRINTED)
    # Without a choice: the run's own data set and model, of which any common key can be replaced.
    dataset: DatasetSettings = setting(
        DatasetSettings(name=""), "another data set, of the same shape", chosen=None
    )
    model: ModelSettings = setting(
        ModelSettings(name=""),
        "the run's own model by an import path of your own: model=custom model.name=MODULE:CLASS",
        chosen=None,
    )


@dataclass(frozen=True)
class ExportSettings:
    """Keys of the command."""

    directory: str = setting(REQUIRED, "folder of a finished run")
    format: str = setting(
        "torch", "a state dict, the same with the statement as metadata, or the computation too", FORMATS
    )
    to: str | None = setting(
        None,
        "FILE to write, which must not exist; null: model.pt, model.safetensors or model.onnx in directory",
    )
    trust_code: bool = setting(
        False,
        "true: import the model that the directory's config.yaml names by an import path, for format=onnx",
    )
    output: Output = setting(Output.text, PRINTED)
    model: ModelSettings = setting(
        ModelSettings(name=""),
        "a model of your own by its import path, where config.yaml names one: model=custom model.name=MODULE:CLASS",
        chosen=None,
    )


@dataclass(frozen=True)
class DatasetsSettings:
    """Keys of the command."""

    output: Output = setting(Output.text, PRINTED)


@dataclass(frozen=True)
class DeployDemoSettings:
    """Keys of the command."""

    directory: str | None = setting(None, "folder of the run; null: runs/deploy-demo_DATE_TIME")
    nodes: int = setting(3, "SuperNodes; they share the 1437 digits clients")
    overrides: str = setting(
        "", "settings of the run, those of simulate, in one text; empty: two epochs of six rounds"
    )
    timeout: float = setting(3600.0, "seconds until the demo gives up")
    output: Output = setting(Output.text, PRINTED)


@dataclass(frozen=True)
class AuditSettings:
    """Keys of the command."""

    directory: str = setting("outputs/audit", "must not exist yet: audit.json goes there")
    run_directory: str | None = setting(
        None, "or run=DIR: audit the run in there instead, of run.keep_releases=true run.reproducible=true"
    )
    trust_code: bool = setting(
        False, "whether code that the settings of that run name by import path may be executed"
    )
    mechanisms: tuple[str, ...] = setting(
        ("optimal",), "families that are attacked, and looked at in a scene of their own", FAMILIES
    )
    sabotage: str | tuple[str, ...] = setting(
        "all",
        "faults that must be caught: all, none, or names of docs/audit.md such as [no clipping,a stale sum]",
    )
    seed: int = setting(0, "run secrets and coins: an audit can be repeated bit for bit")
    output: Output = setting(Output.text, PRINTED)
