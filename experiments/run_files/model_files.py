"""The model of a run directory: read back as a torch module, and written in the formats of other programs."""

import io
import logging
import re
import warnings
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch

from client.data import NEXT_TOKEN
from client.imports import reason
from client.parameters import as_tensor, set_arrays, stored_shapes
from experiments.run_files.directory import MODEL
from experiments.settings.data import DatasetSettings, ModelSettings, arguments
from experiments.settings.experiment import build_module
from experiments.settings.recorded import Recorded
from fedmf.errors import RunDirectoryError, SettingError
from fedmf.npz import read_npz


def load_model(
    directory: Path, recorded: Mapping[str, Any], shape: Mapping[str, Any], seed: int = 0
) -> torch.nn.Module:
    """Return the run's model, built for `shape`, see `shape_of`, with the parameters and buffers of model.npz.

    `recorded` is the group `model` of its config.yaml, `seed` the run's: what a model draws and does not count to its
    state depends on it. The file that the run started from is not read again. Raises `RunDirectoryError` when there is no
    model.npz, `SettingError` when the dataset does not fit the model.
    """
    model = build_module({**recorded, "start": None}, **shape, seed=seed)
    expected, file = stored_shapes(model), directory / MODEL
    stored = read_arrays(file, expected)
    if differing := sorted({*expected} ^ {*stored}):
        raise SettingError(
            f"{differing[0]} is not in both of {file} and the model for this dataset; choose a dataset of the shape that "
            "the run was trained on."
        )
    set_arrays(model, stored)
    return model.eval()


def with_given(recorded: Mapping[str, Any], given: DatasetSettings | ModelSettings) -> dict[str, Any]:
    """Return the arguments of a recorded group with those that are given in their place.

    Another name drops all recorded ones.
    """
    own = arguments(recorded)
    chosen = {key: value for key, value in arguments(given).items() if value not in (None, "")}
    return chosen if chosen.get("name", own["name"]) != own["name"] else {**own, **chosen}


def recorded_seed(document: Recorded) -> int:
    """Return the seed of recorded settings, 0 for what is none."""
    seed = document.get("seed")
    return seed if isinstance(seed, int) and 0 <= seed < 2**63 else 0


def read_arrays(file: Path, shapes: Mapping[str, tuple[int, ...]] | None = None) -> dict[str, np.ndarray]:
    """Return the arrays of a model's .npz file by name, as `read_npz` does for the model's `shapes`.

    Raises `RunDirectoryError` where there is none to read. The model of a run that has not finished is in its
    checkpoint alone, next to secrets: it is not read there.
    """
    if not file.is_file():
        raise RunDirectoryError(
            f"{file} does not exist; a run writes it when it finishes. Resume one that was stopped (run.resume=true), and "
            "restore the file of one that has finished."
        )
    try:
        return read_npz(file, shapes)
    except ValueError as error:
        raise RunDirectoryError(
            f"{file} cannot be read as a model ({error}); it must be the .npz file that the run wrote, and the data of "
            "the shape that the run was trained on."
        ) from error


def read_tensors(file: Path) -> dict[str, torch.Tensor]:
    """Return the arrays of a model's .npz file as a state dict. Raises as `read_arrays`."""
    return {name: as_tensor(name, np.ascontiguousarray(array)) for name, array in read_arrays(file).items()}


_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def as_onnx(model: torch.nn.Module, shape: Mapping[str, Any], along: Mapping[str, str]) -> bytes:
    """Return the computation of `model` as an ONNX file: input x [n, ...] for any n, output scores.

    Raises `SettingError` for a model that torch cannot write as ONNX or ONNX's own evaluator cannot run, and for one that
    gives something else there than in torch, for another number of inputs than it was traced with.
    """
    import onnx
    from onnx.reference import ReferenceEvaluator

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it reports on packages that are not needed
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(3, *shape["input_shape"], generator=generator)
    if shape["task"] == NEXT_TOKEN:
        x = torch.randint(0, shape["classes"], x.shape, generator=generator)
    try:
        with (  # the exporter reports on itself
            warnings.catch_warnings(action="ignore"),
            redirect_stdout(io.StringIO()),
            redirect_stderr(io.StringIO()),
            torch.no_grad(),
        ):
            program: Any = torch.onnx.export(
                model,
                (x,),
                dynamo=True,
                input_names=["x"],
                output_names=["scores"],
                dynamic_shapes=({0: torch.export.Dim("n")},),
                verbose=False,
            )
            written = program.model_proto
            for key, value in along.items():
                written.metadata_props.add(key=f"fedmf.{key}", value=value)
            data: bytes = written.SerializeToString()
            evaluator: Any = ReferenceEvaluator(onnx.load_from_string(data))
            theirs = np.asarray(evaluator.run(None, {"x": x[:2].numpy()})[0])
            ours = model(x[:2]).numpy()
    except Exception as error:  # whatever torch's exporter meets in a custom module
        first: BaseException = error
        while first.__cause__ is not None:
            first = first.__cause__
        raise SettingError(
            f"this model cannot be written as ONNX: {_COLOURS.sub('', reason(first))[:300]}. format=torch and format=safetensors "
            "take any model."
        ) from error
    if ours.shape != theirs.shape or not np.allclose(
        ours, theirs, rtol=1e-3, atol=1e-4 * float(np.abs(ours).max())
    ):
        raise SettingError(
            "this model as ONNX gives other outputs than in torch, as one does that draws, or that looks at how many "
            "inputs there are; use format=torch or format=safetensors."
        )
    return data
