"""A simulation that is killed at random instants, or meets a full disk, and is resumed until it is done."""

import json
import shlex
import subprocess
from collections import defaultdict

import numpy as np
import pytest

from chaos.kills import FAULTS
from chaos.witness import check_released_once, recount
from experiments.engines.engine import resident_client_app
from experiments.settings.experiment import build
from fedmf.randomness import SecretKey
from leaks import in_files
from nodes import program
from runs import assert_equal, composed, model
from server.state import Release

pytestmark = pytest.mark.slow

KILLS, ROUNDS = 40, 12
RUN = shlex.split(
    "dataset=synthetic dataset.clients=30 dataset.features=5 dataset.classes=3 seed=7 population.cohort_size=6 "
    "population.rounds_per_epoch=4 population.epochs=3 run.checkpoint_every=2 optimizer.momentum=0.9 "
    "compression.keep_probability=0.5 run.evaluations=3"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a run that nothing disturbed, called 0, and of those that were killed."""
    return tmp_path_factory.mktemp("kills")


@pytest.fixture(scope="module")
def lives(folder):
    """What the lives of each run have left, by its name."""
    command = program("chaos.kills", folder, str(KILLS), "1", *RUN)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    logs = "".join(log.read_text()[-2000:] for log in folder.glob("*.log"))
    assert done.returncode == 0, done.stderr + logs
    runs = defaultdict(list)
    for life in map(json.loads, done.stdout.splitlines()):
        runs[str(life["run"])].append(life)
    return runs


def commits(folder, run):
    """Return what was noted of a run's commits, in order."""
    return [json.loads(line) for line in (folder / f"{run}.commits").read_text().splitlines()]


def releases(folder, run):
    """Return a run's releases by round: every form in which one was committed."""
    forms = defaultdict(set)
    for row in commits(folder, run):
        if "round" in row:
            forms[row["round"]].add((row["sum"], tuple(row["answered"])))
    return forms


def test_lives_end_in_every_way_and_leave_runs_that_equal_the_undisturbed_one(folder, lives):
    ended = [life["fault"] for run in lives.values() for life in run if life["status"]]
    assert {kind: ended.count(kind) for kind in FAULTS} == dict.fromkeys(FAULTS, KILLS // len(FAULTS))
    assert len(lives) > 2
    for run in map(folder.joinpath, lives):
        assert_equal(run, folder / "0")


def test_a_life_goes_on_with_the_round_after_the_last_on_disk_and_commits_each_once(folder, lives):
    """What a commit returned from is on disk, whatever ended the life then; what was not is committed as before, bit for bit."""
    for run, its_lives in lives.items():
        assert its_lives[-1]["after"] == ROUNDS
        for life in its_lives:
            rows = [row for row in commits(folder, run) if row["process"] == life["process"]]
            asked = [row["round"] for row in rows if "round" in row]
            assert asked == list(range(life["before"] + 1, life["before"] + 1 + len(asked)))
            done = [row["done"] for row in rows if "done" in row]
            assert max([life["before"], *done]) <= life["after"] <= max([life["before"], *asked])
        counts = {number: len(forms) for number, forms in releases(folder, run).items()}
        assert counts == dict.fromkeys(range(1, ROUNDS + 1), 1)
        assert releases(folder, run) == releases(folder, "0")


def test_each_release_is_the_sum_of_its_clients_with_its_own_noise_row_once_and_no_key_is_left(folder, lives):
    settings = composed("run.reproducible=true", *RUN)
    first = SecretKey.reproducible(settings.seed)
    keys = [first, first.ratchet(), first.ratchet().ratchet()]
    released = [
        Release(number, np.frombuffer(bytes.fromhex(noisy), "<f4"), answered)
        for number, ((noisy, answered),) in releases(folder, "0").items()
    ]
    check_released_once(released, ROUNDS)
    experiment = build(settings)
    app = resident_client_app(settings, experiment.dataset.public)
    found = recount(experiment, released, keys, {"": app})
    assert (found.unexplained, found.zeros) == ([], {})
    np.testing.assert_array_equal(found.model, model(folder / "0"))
    for run in lives:
        assert in_files(folder / run, dict(enumerate(keys))) == {}
