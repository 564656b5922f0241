"""Runs over a billion made-up clients: they cost what their cohorts cost, and survive what small runs survive."""

import itertools
import resource
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from crashes import Crash
from experiments.settings.experiment import build
from runs import assert_equal, composed, metrics, run
from server import record
from server.cohort import cohort_indices

pytestmark = pytest.mark.long

MANY = (
    *("dataset=synthetic", "dataset.clients=1000000000", "population.cohort_size=20", "population.epochs=2"),
    *("population.rounds_per_epoch=4", "run.reproducible=true", "run.checkpoint_every=1"),
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


@pytest.mark.parametrize("after", [11, 12])  # transactions: five rounds and six states precede
def test_killed_while_who_was_heard_is_written_a_run_of_a_billion_clients_continues_bit_for_bit(
    tmp_path, monkeypatch, straight, after
):
    real, commits = record.commit, itertools.count(1)

    def commit(connection):
        if next(commits) == after:
            raise Crash
        real(connection)

    with monkeypatch.context() as patched:
        patched.setattr(record, "commit", commit)
        with pytest.raises(Crash):
            run(tmp_path / "r", *MANY)
    assert_equal(run(tmp_path / "r", *MANY, "run.resume=true"), straight)
    assert heard(tmp_path / "r") == heard(straight)


def heard(directory):
    """Return the rows of who was heard in a run, in the order of their rounds."""
    with closing(sqlite3.connect(directory / "checkpoint" / record.FILE)) as connection:
        return connection.execute("SELECT client, epoch, round FROM heard ORDER BY round, place").fetchall()


def test_the_record_holds_each_cohort_once_and_no_other_client(straight):
    plan = build(composed(*MANY)).plan
    assert sorted(heard(straight)) == sorted(
        (str(client), (number - 1) // 4, number)
        for number in range(1, 9)
        for client in cohort_indices(plan, number)
    )
    assert sum(path.stat().st_size for path in (straight / "checkpoint").iterdir()) < 200_000
