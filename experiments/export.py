"""Export the model of a run: `python -m experiments.export directory=DIR format=torch|safetensors|onnx`.

Writes the file `to`, by default model.pt, model.safetensors or model.onnx in the run directory, and never overwrites a file. The
privacy statement is in the metadata of safetensors and ONNX files, and in FILE.json next to a torch file.

torch and safetensors files contain parameters and buffers by name, as `state_dict` does; exporting them needs neither data nor code.
An ONNX file contains the computation too, so the model has to be built. A model that config.yaml names by an import path is imported
only if you name it again (`model=custom model.name=MODULE:CLASS`) or set `trust_code=true` because you trust the author of
the directory.
"""

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from client.imports import need
from experiments.cli import command, output
from experiments.cli.result import statement_lines
from experiments.run_files.directory import MODEL
from experiments.run_files.model_files import as_onnx, load_model, read_tensors, recorded_seed, with_given
from experiments.run_files.reader import read_run
from experiments.settings.data import ModelSettings
from experiments.settings.log import messages
from experiments.settings.recorded import check_code_is_named
from experiments.settings.values import PRINTED, Output, finite
from fedmf.errors import RunDirectoryError
from fedmf.setting import REQUIRED, setting
from fedmf.version import __version__

SUFFIXES = {"torch": ".pt", "safetensors": ".safetensors", "onnx": ".onnx"}
PACKAGES = {"safetensors": ("safetensors.torch",), "onnx": ("onnx", "onnxscript")}


@dataclass(frozen=True)
class ExportSettings:
    directory: str = setting(REQUIRED, "folder of a finished run")
    format: Literal["torch", "safetensors", "onnx"] = setting(
        "torch", "file format: a state dict, the same with the statement as metadata, or the computation too"
    )
    to: str | None = setting(
        None,
        "file to write, which must not exist; null: model.pt, model.safetensors or model.onnx in directory",
    )
    trust_code: bool = setting(
        False,
        "true: import the model that the directory's config.yaml names by an import path, for format=onnx",
    )
    output: Output = setting("text", PRINTED)
    model: ModelSettings = setting(
        ModelSettings(name=""),
        "custom model by its import path, if config.yaml names one: model=custom model.name=MODULE:CLASS",
        chosen=None,
    )


def export(settings: ExportSettings) -> None:
    """Write the model of a finished run; print where it is, and on stderr the statement that goes along."""
    files, statement = written(settings)
    if settings.output == "text":
        short = statement_lines(read_run(Path(settings.directory)))
        messages.info("\n".join(["with the privacy statement of the run, in short:", *short]))
    document = {"files": list(map(str, files)), "statement": statement}
    output.show(settings.output, document, lambda: print(files[0]))


def written(settings: ExportSettings, summary: dict[str, Any] | None = None) -> tuple[list[Path], str]:
    """Write the model of a run; return the files, the model's first, and the statement that goes along.

    `summary` is that of a run that was stopped, which has written none.

    Raises a `FedmfError` before anything is written for a run that has not finished without `summary`, a place that is taken, a package
    that is not installed, code that only the directory names, and a model that the format cannot hold.
    """
    for package in PACKAGES.get(settings.format, ()):
        need(package, f"format={settings.format}", extra=settings.format)
    directory = Path(settings.directory)
    run = read_run(directory, summary)
    file = directory / f"model{SUFFIXES[settings.format]}" if settings.to is None else Path(settings.to)
    beside = file.with_name(f"{file.name}.json")  # a torch file's statement
    for path in (file, beside) if settings.format == "torch" else (file,):
        if path.exists() or path.is_symlink():
            raise RunDirectoryError(f"{path} exists; nothing was written. Name another file as to=FILE.")
    if not file.parent.is_dir():
        raise RunDirectoryError(f"to is {file}, but {file.parent} is no folder; make it first.")
    seed, shape = recorded_seed(run.config), run.shape
    build = with_given(run.config["model"], settings.model)
    paragraph, made = run.privacy["paragraph"], {**build, **shape, "start": None, "seed": seed}
    along = {
        "statement": paragraph,
        "privacy": json.dumps(finite(run.privacy)),
        "model": json.dumps(made),
        "version": __version__,
    }
    if settings.format == "onnx":
        if not settings.trust_code:
            check_code_is_named(
                directory, {"model": build}, given=[settings.model.name], consent="trust_code=true"
            )
        files = {file: as_onnx(load_model(directory, build, shape, seed), shape, along)}
    elif settings.format == "safetensors":
        from safetensors.torch import save

        files = {file: save(read_tensors(directory / MODEL), metadata={"format": "pt", **along})}
    else:
        statement = json.dumps({**along, "privacy": run.privacy, "model": made}, indent=2).encode() + b"\n"
        buffer = io.BytesIO()
        torch.save(read_tensors(directory / MODEL), buffer)  # `torch.load(..., weights_only=True)` reads it
        files = {beside: statement, file: buffer.getvalue()}
    for path, data in files.items():
        with path.open("xb") as opened:
            opened.write(data)
    return [*reversed(files)], paragraph


if __name__ == "__main__":
    command.run(export, "export", ExportSettings, __doc__)
