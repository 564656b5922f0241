"""More worker processes than cores: warned of in one line, whoever asks for them."""

import os

import pytest

from experiments.cli import command
from experiments.reproduce.__main__ import ReproduceSettings, reproduce
from experiments.session import session as simulation
from experiments.settings.engine import warn_of_workers
from runs import composed

CORES = len(os.sched_getaffinity(0))


def test_more_workers_than_cores_are_warned_of_in_one_line_and_as_many_are_not(capsys):
    warn_of_workers("engine.workers", CORES)
    assert capsys.readouterr().err == ""
    warn_of_workers("engine.workers", CORES + 1)
    said = capsys.readouterr().err
    assert said == f"warning: engine.workers is {CORES + 1}, but there are {CORES} cores here; more processes than cores are slower.\n"  # fmt: skip


def test_cores_that_this_process_may_not_use_do_not_count(capsys):
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        warn_of_workers("workers", 2)
    finally:
        os.sched_setaffinity(0, allowed)
    assert "workers is 2, but there are 1 cores here" in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_a_run_warns_before_it_begins(engine, tmp_path, monkeypatch, capsys):
    def stop(settings):
        raise KeyboardInterrupt

    monkeypatch.setattr(simulation, "build", stop)
    for workers in (CORES, CORES + 7):
        with pytest.raises(KeyboardInterrupt):
            simulation.simulate(composed(f"engine={engine}", f"engine.workers={workers}"), tmp_path / "r")
        assert ("engine.workers is" in capsys.readouterr().err) == (workers > CORES)


def test_commands_with_workers_warn_too(capsys):
    with pytest.raises(SystemExit):
        command.run(reproduce, "reproduce", ReproduceSettings, "", ["name=whole_run", "size=no", f"workers={CORES + 1}"])  # fmt: skip
    assert capsys.readouterr().err.startswith(f"warning: workers is {CORES + 1}, but")
