"""Make the runs of a study that are missing: each is `experiments.run` into a directory of its own, done when that is.

Secrets derive from the seed (run.reproducible), so that the same code gives the same numbers. Such a run is NOT private.
"""

import gzip
import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from client.data import Dataset, Examples
from client.data.dataset import LazyClients
from experiments import run
from experiments.engines.processes import leave_to_the_command, spawn_context
from experiments.reproduce import ROOT, texts
from experiments.reproduce.compared import close_cells
from experiments.reproduce.results import Outcome, Results
from experiments.reproduce.study import Cell, Chain, Study, Trial
from experiments.reproduce.tuning import rates
from experiments.run_files.provenance import own_code
from experiments.settings.compose import compose
from experiments.settings.data import arguments, load_dataset
from experiments.settings.schema import Settings
from fedmf.errors import DataError, SettingError
from fedmf.randomness import PublicSeed

ARRAYS = ("x", "y", "user", "split")  # of handwriting by writer, in the order of its digest


@dataclass(frozen=True)
class Means:
    """With what runs are made: the file of real data, the folder of their directories, and processes."""

    data: Path | None
    runs: Path
    workers: int = 1


def compute(study: Study, results: Results, means: Means) -> None:
    """Make the runs that are missing, chain by chain, then those with more seeds of cells that lie close together."""
    if means.data is not None:
        check_data(means.data, study)
    elif any(study.needs_data(task.name) for task in study.tasks):
        raise SettingError(
            f"data is null, but {study.name} trains on real data. Set data={study['data']['file']} (docs/data.md), or compute=false."
        )
    with spawn_context().Pool(means.workers, _start) as pool:  # a fork would inherit torch's threads
        for found in pool.imap_unordered(partial(_play_chain, study, results, means), study.chains()):
            results.add(found)
        tuned = tuned_rates(study, results)
        seeds = range(study.seeds, study.seeds + study.more)
        more = [
            Trial(cell, tuned[cell], seed) for cell in close_cells(study, results, tuned) for seed in seeds
        ]
        missing = [trial for trial in more if results.find(trial) is None]
        for trial, outcome in zip(missing, pool.imap(partial(play, study, means), missing), strict=True):
            results.add({trial.key: outcome})
    for task in study.tasks if study["texts"] else ():
        if results.find(trial := texts.same_words(task)) is None:
            dataset = _loaded(tuple(overrides(study, means, trial.cell)))
            results.add(
                {trial.key: Outcome(*texts.frequencies_alone(dataset), 0.0, 0.0, *own_code().values())}
            )


def tuned_rates(study: Study, results: Results) -> dict[Cell, float]:
    """Return the learning rate of each cell whose search has ended, without computing anything."""

    def known(trials: Sequence[Trial]) -> list[Outcome] | None:
        found = [outcome for trial in trials if (outcome := results.find(trial))]
        return found if len(found) == len(trials) else None

    return {cell: rate for chain in study.chains() for cell, rate in rates(chain, study, known)}


def _start() -> None:
    leave_to_the_command()
    torch.set_num_threads(1)


def _play_chain(study: Study, results: Results, means: Means, chain: Chain) -> Mapping[str, Outcome]:
    """Return the outcomes of a chain that `results` lack, by the keys of their trials."""
    made: dict[str, Outcome] = {}

    def played(trials: Sequence[Trial]) -> list[Outcome]:
        for trial in trials:
            if results.find(trial) is None and trial.key not in made:
                made[trial.key] = play(study, means, trial)
        return [results.find(trial) or made[trial.key] for trial in trials]

    for cell, rate in rates(chain, study, played):
        played([Trial(cell, rate, seed) for seed in range(study.seeds)])
    return made


def play(study: Study, means: Means, trial: Trial) -> Outcome:
    """Return what came of a trial, whose run directory is taken as it is where it has finished."""
    cpu, wall = time.process_time(), time.monotonic()
    digest = hashlib.sha256(trial.key.encode()).hexdigest()[:16]
    own = overrides(study, means, trial.cell)
    given: dict[str, Any] = {"optimizer": {"learning_rate": trial.rate}, "seed": trial.seed}
    if trial.held_out:
        inner = {"overrides": own, "share": trial.held_out, "seed": trial.seed}
        own = [one for one in own if not one.startswith("dataset")]
        given["dataset"] = {"settings": inner}
        own += ["dataset=custom", f"dataset.name={__name__}:held_out"]
    where = [
        f"run.directory={means.runs / digest}",
        "run.resume=true",
        "run.reproducible=true",
        "run.evaluations=1",
    ]
    result = run(*own, *where, **given)
    accuracy, loss = result.summary["accuracy"], result.summary["loss"]
    if loss is None or not math.isfinite(loss):
        accuracy, loss = 0.0, None
    elif study["texts"]:
        accuracy = texts.likelihood(loss) if trial.held_out else result.scores[texts.KnownWords.__name__]
    seconds = (round(time.process_time() - cpu, 2), round(time.monotonic() - wall, 2))
    return Outcome(accuracy if trial.held_out and study["texts"] else round(accuracy, 5),
                   None if loss is None else round(loss, 5), *seconds, *own_code().values())  # fmt: skip


def overrides(study: Study, means: Means, cell: Cell) -> list[str]:
    """Return the settings of a cell's runs with the place of the data, which no result depends on."""
    own = list(cell.overrides)
    if study.needs_data(cell.task):
        own.append(f"dataset.path={means.data}")
    if study["texts"]:
        own += [f"dataset.vocabulary={ROOT / texts.WORDS}", f"metrics=[{texts.METRIC}]"]
    return own


def held_out(
    overrides: Sequence[str], share: float, seed: int, path: object = None, vocabulary: object = None
) -> Dataset:
    """Return a dataset whose test examples are those of floor(share N) training clients, who do not train.

    The public seed chooses them; the test split of the dataset is left out.
    """
    dataset = _loaded(tuple(overrides))
    clients = len(dataset.clients)
    order = PublicSeed(seed).generator("held out clients", dataset.name).permutation(clients)
    aside, left = np.split(order, [math.floor(share * clients)])
    held = Chosen(dataset.clients, aside)[:]
    test = Examples(*(np.concatenate([getattr(one, name) for one in held]) for name in ("x", "y")))
    return replace(dataset, clients=Chosen(dataset.clients, np.sort(left)), test=test)


@lru_cache(maxsize=2)
def _loaded(overrides: tuple[str, ...]) -> Dataset:
    return load_dataset(arguments(compose("config", list(overrides), Settings).dataset))


@dataclass(frozen=True)
class Chosen(LazyClients):
    """Some of the clients of a dataset: client i is its client `indices[i]`."""

    everyone: Sequence[Examples]
    indices: npt.NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self.indices)

    def client(self, i: int) -> Examples:
        """Return one client's examples."""
        return self.everyone[int(self.indices[i])]


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
