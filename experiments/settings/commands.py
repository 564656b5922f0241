"""The settings of commands that take long to import: `--help` and the completion read them here."""

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
        "", "settings of the run, those of simulate, in one text; empty: the run that `make run` simulates"
    )
    timeout: float = setting(3600.0, "seconds until the demo gives up")
    output: Output = setting(Output.text, PRINTED)


@dataclass(frozen=True)
class AuditSettings:
    """Keys of the command."""

    directory: str = setting("outputs/audit", "must not exist yet: audit.png and audit.json go there")
    sabotage: str | tuple[str, ...] = setting(
        "none",
        "what is broken on purpose: none, all, or names of docs/audit.md such as [no clipping,a stale sum]",
    )
    thorough: bool = setting(
        False,
        "true: all mechanisms, ten times the runs, twenty times the residual runs, 160 pairs (six "
        "times a number that is given), a tenth of one_run_delta, for a night",
    )
    run_directory: str | None = setting(
        None, "or run=DIR: audit the run in there instead, of run.keep_releases=true run.reproducible=true"
    )
    trust_code: bool = setting(
        False, "whether code that the settings of that run name by import path may be executed"
    )
    calibration: int = setting(0, "so many honest streams: measure false alarms and power instead")
    mechanisms: tuple[str, ...] = setting(
        ("optimal", "independent"), "families of the pipelines that are attacked", FAMILIES
    )
    keep_probabilities: tuple[float, ...] = setting((1.0, 0.1), "gamma of the pipelines that are attacked")
    epsilon: float = setting(1.5, "what the pipelines state, by calibration")
    delta: float = setting(0.02, "large on purpose: see docs/audit.md")
    runs: int = setting(
        2000, "of each attacked pipeline, half with the canary in; 0: leave these attacks out"
    )
    cohort_size: int = setting(4, "n; the other n - 1 are the attacker's companions")
    rounds_per_epoch: int = setting(3, "T; there are n T clients")
    epochs: int = setting(2, "epochs of each pipeline")
    one_run_epsilon: float = setting(2.0, "what the pipeline of the one-run audit states")
    one_run_delta: float = setting(1e-05, "delta of the one-run audit")
    canaries: int = setting(16384, "clients of the one-run audit, a multiple of 8; 0: leave it out")
    guesses: int = setting(656, "how many of their coins are guessed")
    pairs: int | None = setting(
        None,
        "of runs with the same secrets, one client in and out, in each way a run can go; null: so "
        "many that each kind of vector is sent in every round (19 to 33); 0: leave them out",
    )
    residual_runs: int = setting(
        50, "whose noise is held against its law, in each way a run can go; 0: leave them out"
    )
    confidence: float = setting(
        0.95, "of each printed lower bound by itself, and of all of them together where the exit code decides"
    )
    workers: int = setting(2, "processes that play; 1: this one")
    seed: int = setting(0, "coins, run secrets and thresholds: an audit can be repeated bit for bit")
    output: Output = setting(Output.text, PRINTED)
