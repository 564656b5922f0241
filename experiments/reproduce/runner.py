"""Make the runs of a study that are missing: each is `experiments.run` into a directory of its own, done when that is.

Secrets derive from the seed (run.reproducible), so that the same code gives the same numbers. Such a run is NOT private.
"""

import gzip
import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from experiments import run
from experiments.engines.processes import leave_to_the_command, spawn_context
from experiments.reproduce import ROOT, texts
from experiments.reproduce.results import Outcome, Results, close_cells
from experiments.reproduce.study import Cell, Chain, Study, Trial, tuned
from experiments.run_files.provenance import own_code
from experiments.settings.compose import compose
from experiments.settings.data import arguments, load_dataset
from experiments.settings.schema import Settings
from fedmf.errors import DataError, SettingError

ARRAYS = ("x", "y", "user", "split")  # of handwriting by writer, in the order of its digest


def compute(results: Results, data: Path | None, runs: Path, workers: int = 1) -> None:
    """Make the runs that are missing, chain by chain, then those with more seeds of cells that lie close together.

    `data` is the file of real data, `runs` the folder of the run directories.
    """
    study = results.study
    if data is not None:
        check_data(data, study)
    elif any(study.needs_data(task.name) for task in study.tasks):
        raise SettingError(
            f"data is null, but {study.name} trains on real data. Set data={study['data']['file']} (docs/data.md), or compute=false."
        )
    with spawn_context().Pool(workers, leave_to_the_command) as pool:  # a fork would inherit torch's threads
        for found in pool.imap_unordered(partial(_run_chain, results, data, runs), study.chains()):
            results.add(found)
        seeds = range(study.seeds, study.seeds + study.more)
        more = [Trial(cell, results.rates[cell], seed) for cell in close_cells(results) for seed in seeds]
        missing = [trial for trial in more if results.find(trial) is None]
        for trial, outcome in zip(
            missing, pool.imap(partial(run_trial, study, data, runs), missing), strict=True
        ):
            results.add({trial.key: outcome})
    for task in study.tasks if study["texts"] else ():
        if results.find(trial := texts.same_words(task)) is None:
            dataset = compose("config", overrides(study, data, trial.cell), Settings).dataset
            scores = texts.frequencies_alone(load_dataset(arguments(dataset)))
            results.add({trial.key: Outcome(*scores, 0.0, 0.0, *own_code().values())})


def _run_chain(results: Results, data: Path | None, runs: Path, chain: Chain) -> Mapping[str, Outcome]:
    """Return the outcomes of a chain that `results` lack, by the keys of their trials."""
    made: dict[str, Outcome] = {}

    def run_all(trials: Sequence[Trial]) -> list[Outcome]:
        for trial in trials:
            if results.find(trial) is None and trial.key not in made:
                made[trial.key] = run_trial(results.study, data, runs, trial)
        return [results.find(trial) or made[trial.key] for trial in trials]

    for cell, rate in tuned(chain, results.study["held_out"], run_all):
        run_all([Trial(cell, rate, seed) for seed in range(results.study.seeds)])
    return made


def run_trial(study: Study, data: Path | None, runs: Path, trial: Trial) -> Outcome:
    """Return what came of a trial, whose run directory is taken as it is where it has finished."""
    torch.set_num_threads(1)
    cpu, wall = time.process_time(), time.monotonic()
    digest = hashlib.sha256(trial.key.encode()).hexdigest()[:16]
    tuning = (
        (f"dataset.held_out={trial.held_out}", "dataset.max_test_examples=null") if trial.held_out else ()
    )
    result = run(
        *overrides(study, data, trial.cell),
        *tuning,
        f"run.directory={runs / digest}",
        "run.resume=true",
        "run.reproducible=true",
        "run.evaluations=1",
        optimizer={"learning_rate": trial.rate},
        seed=trial.seed,
    )
    accuracy, loss = round(result.summary["accuracy"], 5), result.summary["loss"]
    if loss is None or not math.isfinite(loss):
        accuracy, loss = 0.0, None
    elif study["texts"] and tuning:
        # Rates are compared by the geometric mean of the tokens' probabilities, which tells poor runs apart.
        accuracy = float(f"{math.exp(-loss):.9g}")
    elif study["texts"]:
        accuracy = round(result.scores[texts.KnownWords.__name__], 5)
    seconds = (round(time.process_time() - cpu, 2), round(time.monotonic() - wall, 2))
    return Outcome(accuracy, None if loss is None else round(loss, 5), *seconds, *own_code().values())


def overrides(study: Study, data: Path | None, cell: Cell) -> list[str]:
    """Return the settings of a cell's runs with the place of the data, which no result depends on."""
    own = list(cell.overrides)
    if study.needs_data(cell.task):
        own.append(f"dataset.path={data}")
    if study["texts"]:
        own += [
            f"dataset.vocabulary={ROOT / texts.WORDS}",
            f"metrics=[{texts.__name__}:{texts.KnownWords.__name__}]",
        ]
    return own


def check_data(path: Path, study: Study) -> None:
    """Raise `DataError` unless a file is the one of the study: results are kept by settings, not by data."""
    digest = hashlib.sha256()
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                for name in ARRAYS:
                    digest.update(np.ascontiguousarray(arrays[name]).tobytes())
        else:
            with gzip.open(path) as file:
                digest = hashlib.file_digest(file, "sha256")
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise DataError(f"{path}: cannot be read as {study['data']['file']} ({error}).") from error
    if digest.hexdigest() != study["data"]["digest"]:
        raise DataError(
            f"{path}: not the data of the committed results. data must be {study['data']['file']}, as docs/data.md says "
            'under "The files of the experiments".'
        )
