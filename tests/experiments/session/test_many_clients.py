"""Runs over a billion made-up clients: they cost what their cohorts cost, and survive what small runs survive."""

import json
import resource
from pathlib import Path

import pytest

from attended import attended
from crashes import Crash
from experiments.settings.experiment import build
from fedmf.npz import read_npz
from runs import assert_equal, composed, metrics, run
from server import register_log, state_files
from server.cohort import cohort_indices

pytestmark = pytest.mark.long

MANY = (
    *("dataset=synthetic", "dataset.clients=1000000000", "population.cohort_size=20"),
    *(
        "population.rounds_per_epoch=4",
        "population.epochs=2",
        "run.reproducible=true",
        "run.checkpoint_every=1",
    ),
)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run that nothing interrupts."""
    return run(tmp_path_factory.mktemp("straight") / "r", *MANY)


def test_a_run_of_a_billion_clients_lists_them_nowhere(tmp_path):
    """A list of them would need 8 GB; the run gets 1 GiB beyond what the process has mapped after a small one."""
    run(tmp_path / "small", *MANY, "dataset.clients=1000", "population.epochs=1")
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (mapped + 2**30, limits[1]))
    try:
        run(tmp_path / "r", *MANY, "population.epochs=1")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert len(metrics(tmp_path / "r")) == 4


def crash_in_line(monkeypatch):
    """Write half of what the sixth checkpoint adds to the register, and no more."""
    write, lines = register_log.write_all, []

    def torn(descriptor, data):
        lines.append(data)
        write(descriptor, data[: len(data) // 2] if len(lines) == 6 else data)
        if len(lines) == 6:
            raise Crash

    monkeypatch.setattr(register_log, "write_all", torn)


def crash_before_base(monkeypatch):
    """Let the register be ahead of the checkpoint that refers to it."""
    write = state_files.write_atomically

    def no_base(path, *arguments, **options):
        if path.name == "base-000006.npz":
            raise Crash
        write(path, *arguments, **options)

    monkeypatch.setattr(state_files, "write_atomically", no_base)


@pytest.mark.parametrize("crash", [crash_in_line, crash_before_base])
def test_killed_while_the_register_is_written_a_run_of_a_billion_clients_goes_on_bit_for_bit(
    tmp_path, monkeypatch, straight, crash
):
    crash(monkeypatch)
    with pytest.raises(Crash):
        run(tmp_path / "r", *MANY)
    monkeypatch.undo()
    assert_equal(run(tmp_path / "r", *MANY, "run.resume=true"), straight)
    assert registered(tmp_path / "r") == registered(straight)


def registered(directory):
    """Return the register at the end of a run, as it is on disk."""
    folder = directory / "checkpoint"
    about = json.loads(str(read_npz(folder / "base-000008.npz")["about"]))
    return register_log.load(folder, about["register"], otherwise="")


def test_the_register_holds_each_cohort_once_and_nobody_else(straight):
    plan = build(composed(*MANY)).plan
    heard = [{str(client) for number in rounds for client in cohort_indices(plan, number)}
             for rounds in ((1, 2, 3, 4), (5, 6, 7, 8))]  # fmt: skip
    register = registered(straight)
    assert (set(attended(register)), set(register.spent)) == tuple(heard)
    assert (len(heard[0]), len(heard[1])) == (80, 80)
