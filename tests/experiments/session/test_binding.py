"""The limit and the parts of a run are bound in its checkpoint: an edited or missing config.yaml changes neither."""

import shutil

import pytest

from crashes import Crash, cut
from experiments.cli.command import guard
from experiments.run_files.reader import read_config
from experiments.session import resume as extension
from experiments.session.resume import run_settings
from runs import metrics, run, simulate, summary

pytestmark = pytest.mark.long

SMALL = ("population.cohort_size=6", "population.rounds_per_epoch=3", "population.epochs=4", "run.reproducible=true",
         "privacy.epsilon=null", "privacy.noise_multiplier=2", "run.checkpoint_every=2")  # fmt: skip
LIMITED = (*SMALL, "privacy.max_epsilon=6")


def crash(*_, **__):
    raise Crash


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """A run with a limit, cut off after its first epoch."""
    return cut(tmp_path_factory.mktemp("broken") / "r", *LIMITED, after=4)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of two epochs, to which nobody set a limit."""
    return run(tmp_path_factory.mktemp("finished") / "r", *SMALL, "population.epochs=2")


def copied(directory, folder):
    return shutil.copytree(directory, folder / "r")


def edited(directory, old, new):
    path = directory / "config.yaml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def refused(capsys, directory, *given):
    """Return what the command says of a call that it refuses, which leaves everything as it was."""
    before = contents(directory)
    resumed = [f"run.directory={directory}", *given]
    assert guard(lambda: simulate(run_settings(resumed))) == 2
    assert contents(directory) == before
    return capsys.readouterr().err


def contents(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


RESUME = ("run.resume=true", "run.accept_copy=true")


def test_a_cut_run_without_its_config_does_not_go_on_with_another_limit(tmp_path, capsys, broken):
    directory = copied(broken, tmp_path)
    (directory / "config.yaml").unlink()
    given = (*SMALL, "privacy.max_epsilon=50", *RESUME)
    assert "no config.yaml" in refused(capsys, directory, *given)
    before = contents(directory)
    assert guard(lambda: run(directory, *given)) == 2  # all settings given, as a program does
    assert "no config.yaml" in capsys.readouterr().err
    assert contents(directory) == before


def test_the_checkpoint_itself_refuses_another_limit(tmp_path, capsys, monkeypatch, broken):
    """Whatever reads or writes config.yaml."""
    directory = copied(broken, tmp_path)
    for module in ("session.session", "session.resume"):
        monkeypatch.setattr(f"experiments.{module}.refuse_lost_config", lambda path: None)
    (directory / "config.yaml").unlink()
    assert guard(lambda: run(directory, *SMALL, "privacy.max_epsilon=50", *RESUME)) == 2
    assert "privacy.max_epsilon is 50.0, but the run in" in capsys.readouterr().err


def test_an_edited_limit_is_refused_by_name(tmp_path, capsys, broken):
    directory = copied(broken, tmp_path)
    edited(directory, "max_epsilon: 6.0", "max_epsilon: 50.0")
    said = refused(capsys, directory, *RESUME)
    assert "privacy.max_epsilon is 50.0" in said
    assert "but 6.0 in the checkpoint" in said


def test_an_edited_limit_does_not_allow_an_extension(tmp_path, capsys, finished):
    directory = copied(finished, tmp_path)
    edited(directory, "max_epsilon: null", "max_epsilon: 100.0")
    assert "but null in the checkpoint" in refused(capsys, directory, "run.extend=1")


def test_edited_parts_are_refused_by_name(tmp_path, capsys, finished):
    directory = copied(finished, tmp_path)
    extending = (*SMALL, "population.epochs=2", "run.extend=2", "privacy.max_epsilon=90")
    cut(directory, *extending, after=2)
    edited(directory, "parts:\n  - 2\n  - 2\n", "parts:\n  - 2\n  - 30\n")
    said = refused(capsys, directory, "run.resume=true")
    assert "population.parts is [2,30]" in said
    assert "[2,2] in the checkpoint" in said


def test_an_extension_that_lost_its_config_says_so(tmp_path, capsys, finished):
    directory = copied(finished, tmp_path)
    extending = (*SMALL, "population.epochs=2", "run.extend=2", "privacy.max_epsilon=90")
    cut(directory, *extending, after=2)
    (directory / "config.yaml").unlink()
    assert "no config.yaml" in refused(capsys, directory, "run.resume=true")
    assert "no config.yaml" in refused(capsys, directory, *extending)


def test_a_finished_run_that_lost_its_config_is_not_taken_for_one_of_other_settings(
    tmp_path, capsys, finished
):
    directory = copied(finished, tmp_path)
    (directory / "config.yaml").unlink()
    assert "no config.yaml" in refused(capsys, directory, "run.resume=true", "seed=7")


def test_a_finished_run_that_lost_its_checkpoint_is_not_extended(tmp_path, capsys, finished):
    for name, lose in (
        ("a", lambda folder: shutil.rmtree(folder)),
        ("b", lambda folder: [f.unlink() for f in folder.glob("base*")]),
    ):
        directory = copied(finished, tmp_path / name)
        lose(directory / "checkpoint")
        assert guard(lambda there=directory: run(there, *SMALL, "population.epochs=2", "run.extend=1", "privacy.max_epsilon=90")) == 2  # fmt: skip
        assert "holds no checkpoint" in capsys.readouterr().err


def test_a_limit_of_an_extension_that_never_began_allows_nothing(tmp_path, capsys, monkeypatch, finished):
    """Killed with everything written but the end of summary.json, which is where an extension begins."""
    directory = copied(finished, tmp_path)
    extending = ("run.extend=1", "privacy.max_epsilon=90")
    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.unlink", unlinking(stop_at="summary.json"))
        with pytest.raises(Crash):
            run(directory, *SMALL, "population.epochs=2", *extending)
    assert summary(directory)["epochs"] == 2
    assert read_config(directory)["privacy"]["max_epsilon"] is None
    assert "to which no limit was set" in refused(capsys, directory, "run.extend=1")
    simulate(run_settings([f"run.directory={directory}", *extending]))
    assert summary(directory)["epochs"] == 3


def unlinking(stop_at):
    from pathlib import Path

    real = Path.unlink

    def unlink(self, missing_ok=False):
        if self.name == stop_at:
            raise Crash
        real(self, missing_ok)

    return unlink


def test_an_extension_killed_before_its_config_goes_on_with_its_limit(tmp_path, monkeypatch, finished):
    directory = copied(finished, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(extension, "complete", crash)
        with pytest.raises(Crash):
            run(directory, *SMALL, "population.epochs=2", "run.extend=1", "privacy.max_epsilon=90")
    assert not (directory / "summary.json").exists()
    assert read_config(directory)["privacy"]["max_epsilon"] is None
    simulate(run_settings([f"run.directory={directory}", "run.resume=true"]))
    assert (summary(directory)["epochs"], len(metrics(directory))) == (3, 9)
    held = read_config(directory)
    assert (held["privacy"]["max_epsilon"], held["population"]["parts"]) == (90, [2, 1])


def test_an_extension_says_what_all_epochs_cost(tmp_path, capsys):
    once = (*SMALL, "population.epochs=1")
    run(tmp_path / "r", *once)
    capsys.readouterr()
    run(tmp_path / "r", *once, "run.extend=1", "privacy.max_epsilon=90")
    lines = capsys.readouterr().err
    assert "extended: 1 more after 1 epoch, epsilon" in lines
    assert "a copy of this run that is extended too" in lines
    spent = summary(tmp_path / "r")["epsilon"]
    shown = float(lines.split(" -> ")[1].split()[0])
    assert spent <= shown <= spent * 1.01
