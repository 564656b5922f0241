"""What goes on after a crash is the run that began: its own directory, all that it released, its own clients."""

import json
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest

from crashes import Crash, behind_round
from experiments import run as door
from experiments.cli.command import guard
from experiments.session.recorder import Scorer
from fedmf.errors import DivergedError
from runs import metrics, model, run, summary
from server import marks, origin
from server.checkpoint import Checkpoint

pytestmark = pytest.mark.long

SMALL = (
    "dataset=by_user_npz",
    "population.cohort_size=4",
    "population.rounds_per_epoch=4",
    "population.epochs=2",
    "run.checkpoint_every=2",
    "optimizer.learning_rate=0.1",
)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the marks of this test's runs lie."""
    monkeypatch.setenv("FEDMF_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def people(path: Path, order: np.ndarray, **changes: object) -> Path:
    """Write the data of 20 people, who are numbered in `order`."""
    rng = np.random.default_rng(0)
    x, y = rng.random((20, 5, 4)), rng.integers(0, 3, (20, 5))
    y[:, 0] = 2
    arrays = {"x": x[order].reshape(100, 4), "y": y[order].ravel(), "user": np.repeat(np.arange(20), 5)}
    np.savez(path, **{**arrays, "split": np.tile([1, 0, 0, 0, 0], 20), **changes})  # type: ignore[arg-type]
    return path


@pytest.fixture
def own(tmp_path: Path) -> tuple[str, ...]:
    """The settings of a run on a file of its own."""
    return (*SMALL, f"dataset.path={people(tmp_path / 'people.npz', np.arange(20))}")


def cut(directory: Path, monkeypatch: pytest.MonkeyPatch, *settings: str, after: int = 3) -> Path:
    """Leave a run that was killed when it had shown round `after`."""
    with behind_round(Checkpoint, "settle", after):
        run(directory, *settings)
    return directory


def files(directory: Path) -> dict[Path, bytes]:
    """What is in a directory."""
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def refused(directory: Path, capsys: pytest.CaptureFixture[str], *settings: str) -> str:
    """Return the sentence with which a resume is refused, after checking that nothing has changed."""
    before = files(directory)
    capsys.readouterr()
    assert guard(lambda: run(directory, *settings, "run.resume=true")) == 2
    assert files(directory) == before
    return capsys.readouterr().err


def test_the_same_people_in_another_order_are_refused(tmp_path, own, monkeypatch, capsys) -> None:
    cut(tmp_path / "r", monkeypatch, *own)
    people(tmp_path / "people.npz", np.random.default_rng(1).permutation(20))
    assert "with the same in another order" in refused(tmp_path / "r", capsys, *own)
    people(tmp_path / "people.npz", np.arange(20))
    run(tmp_path / "r", *own, "run.resume=true")
    assert [row["round"] for row in metrics(tmp_path / "r")] == list(range(1, 9))


def test_other_data_of_the_same_people_and_another_number_of_people_are_refused(
    tmp_path, own, monkeypatch, capsys
) -> None:
    cut(tmp_path / "r", monkeypatch, *own)
    y = np.load(tmp_path / "people.npz")["y"]
    y[1] = (y[1] + 1) % 3  # one label of one person
    people(tmp_path / "people.npz", np.arange(20), y=y)
    assert "with other clients than the data now hold" in refused(tmp_path / "r", capsys, *own)
    few = np.repeat(np.arange(20), 5)
    few[:5] = 1  # two people became one
    people(tmp_path / "people.npz", np.arange(20), user=few)
    assert "began with 20 clients, and the data now hold 19" in refused(tmp_path / "r", capsys, *own)


def test_the_digest_is_keyed_and_both_are_secret_and_gone_at_the_end(tmp_path, own, monkeypatch) -> None:
    digests = []
    for name in ("a", "b"):
        directory = cut(tmp_path / name, monkeypatch, *own)
        file = directory / "checkpoint" / origin.ORIGIN
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        digests.append(json.loads(file.read_text())["digest"])
        assert not any(
            digests[-1].encode() in data
            for path, data in files(directory).items()
            if path.name != origin.ORIGIN
        )
        run(directory, *own, "run.resume=true")
        assert not list(directory.rglob("origin*"))
    assert digests[0] != digests[1]  # the same people: without the key it says nothing


def test_a_copy_of_a_run_does_not_go_on_and_the_run_itself_does(tmp_path, own, monkeypatch, capsys) -> None:
    cut(tmp_path / "r", monkeypatch, *own)
    shutil.copytree(tmp_path / "r", tmp_path / "copy")
    says = refused(tmp_path / "copy", capsys, *own)
    assert f"this directory is a copy: the run began in {tmp_path / 'r'}" in says
    assert "run.accept_copy=true" in says
    run(tmp_path / "r", *own, "run.resume=true")
    assert len(metrics(tmp_path / "r")) == 8


def test_a_directory_that_was_moved_goes_on(tmp_path, own, monkeypatch) -> None:
    cut(tmp_path / "r", monkeypatch, *own)
    (tmp_path / "r").rename(tmp_path / "moved")
    run(tmp_path / "moved", *own, "run.resume=true")
    assert len(metrics(tmp_path / "moved")) == 8


def test_on_another_machine_a_run_is_refused_and_goes_on_once_it_is_accepted(
    tmp_path, own, monkeypatch, capsys, caplog
) -> None:
    cut(tmp_path / "r", monkeypatch, *own)
    monkeypatch.setattr(origin, "machine_digest", lambda: "another")
    assert "began in a directory of another machine" in refused(tmp_path / "r", capsys, *own)
    cut(tmp_path / "r", monkeypatch, *own, "run.resume=true", "run.accept_copy=true", after=5)
    assert "It goes on all the same" in caplog.text
    run(tmp_path / "r", *own, "run.resume=true")  # it is at home here now
    assert len(metrics(tmp_path / "r")) == 8


def test_an_older_state_of_a_run_does_not_go_on(tmp_path, own, monkeypatch, capsys) -> None:
    directory = cut(tmp_path / "r", monkeypatch, *own)
    shutil.copytree(directory, tmp_path / "snapshot")
    cut(directory, monkeypatch, *own, "run.resume=true", after=4)
    for path in sorted(directory.rglob("*"), reverse=True):  # set back in place: the same directory
        path.rmdir() if path.is_dir() else path.unlink()
    shutil.copytree(tmp_path / "snapshot", directory, dirs_exist_ok=True)
    says = refused(directory, capsys, *own)
    assert "ends at round 3, but this is an older state: 4 of its rounds were released" in says
    run(directory, *own, "run.resume=true", "run.accept_copy=true")  # a person's word
    assert len(metrics(directory)) == 8


def test_an_older_state_from_before_the_first_round_does_not_begin_anew(
    tmp_path, own, monkeypatch, capsys
) -> None:
    def crash(*_: object) -> None:
        raise Crash

    directory = tmp_path / "r"
    with monkeypatch.context() as patched:
        patched.setattr("experiments.session.session.run_locally", crash)
        with pytest.raises(Crash):
            run(directory, *own)
    shutil.copytree(directory, tmp_path / "snapshot")
    cut(directory, monkeypatch, *own, "run.resume=true", after=1)
    for path in sorted(directory.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    shutil.copytree(tmp_path / "snapshot", directory, dirs_exist_ok=True)
    assert "ends at round 0, but this is an older state: 1 of its rounds" in refused(directory, capsys, *own)


def test_of_two_copies_that_were_both_let_go_on_only_one_releases_a_round(
    tmp_path, own, monkeypatch, capsys
) -> None:
    first = cut(tmp_path / "r", monkeypatch, *own)
    shutil.copytree(first, tmp_path / "copy")

    real = Checkpoint.commit

    def commit(self, release):  # type: ignore[no-untyped-def]
        if self.folder.parent == first and release.round == 5:
            cut(tmp_path / "copy", monkeypatch, *own, "run.resume=true", "run.accept_copy=true", after=5)
        real(self, release)

    monkeypatch.setattr(Checkpoint, "commit", commit)
    capsys.readouterr()
    assert guard(lambda: run(first, *own, "run.resume=true")) == 2
    assert "round 5 of the run in" in (says := capsys.readouterr().err)
    assert "was released from another copy" in says
    assert len(metrics(first)) == 4
    assert len(metrics(tmp_path / "copy")) == 5


def test_the_mark_counts_released_rounds_for_their_owner_and_says_when_the_run_is_over(
    tmp_path, own, monkeypatch, state
) -> None:
    cut(tmp_path / "r", monkeypatch, *own)
    (mark,) = state.iterdir()
    assert mark.read_text() == "3\n"
    assert stat.S_IMODE(mark.stat().st_mode) == 0o600
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    run(tmp_path / "r", *own, "run.resume=true")
    assert [path.read_text() for path in state.iterdir()] == ["8 over\n"]


def test_a_killed_process_between_release_and_mark_goes_on(tmp_path, own, monkeypatch) -> None:
    real = marks.write

    def write(name: str, released: int) -> bool:
        if released == 3:
            raise Crash
        return real(name, released)

    with monkeypatch.context() as patched:
        patched.setattr(marks, "write", write)
        with pytest.raises(Crash):
            run(tmp_path / "r", *own)
    run(tmp_path / "r", *own, "run.resume=true")
    assert len(metrics(tmp_path / "r")) == 8


def test_a_state_folder_that_cannot_be_written_warns_and_the_run_goes_on(
    tmp_path, own, monkeypatch, caplog, capsys
) -> None:
    marks._warn.cache_clear()
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDMF_STATE", str(tmp_path / "file"))
    cut(tmp_path / "r", monkeypatch, *own)
    assert caplog.text.count("set FEDMF_STATE to a folder that can be written") == 1
    run(tmp_path / "r", *own, "run.resume=true")
    assert len(metrics(tmp_path / "r")) == 8


def test_a_mark_that_is_lost_is_asked_for(tmp_path, own, monkeypatch, state, capsys) -> None:
    cut(tmp_path / "r", monkeypatch, *own)
    shutil.rmtree(state)
    assert f"{state} does not say how many of its rounds were released" in refused(
        tmp_path / "r", capsys, *own
    )
    door.resume(tmp_path / "r", accept_copy=True)
    assert len(metrics(tmp_path / "r")) == 8


def test_a_divergence_found_while_resuming_erases_the_key_and_nothing_goes_on(
    tmp_path, own, monkeypatch, capsys, state
) -> None:
    """The crash comes between the journal and the record; the loss is not finite, though the model may be."""
    settings = (*own, "optimizer.learning_rate=3e38", "optimizer.momentum=0", "privacy.epsilon=1")
    with behind_round(Checkpoint, "commit", 1):
        run(tmp_path / "r", *settings)
    assert list(tmp_path.rglob("secrets*"))
    assert guard(lambda: run(tmp_path / "r", *settings, "run.resume=true")) == 2
    assert "after round 1" in capsys.readouterr().err
    assert not list(tmp_path.rglob("secrets*"))
    assert not list(tmp_path.rglob("origin*"))
    assert [path.read_text() for path in state.iterdir()] == ["1 over\n"]
    for _ in range(2):
        assert guard(lambda: run(tmp_path / "r", *settings, "run.resume=true")) == 2
        assert [row["round"] for row in metrics(tmp_path / "r")] == [1]


def test_a_divergence_that_a_crash_hid_after_its_row_ends_the_run_as_well(
    tmp_path, own, monkeypatch, capsys
) -> None:
    """The row is there without a score, the model is finite, its loss is not: only another score tells."""

    def crash(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr("server.checkpoint.Checkpoint.settle", crash)
        with pytest.raises(Crash):
            run(tmp_path / "r", *own)
    real = Scorer.score

    def evaluate(self, state):  # type: ignore[no-untyped-def]
        real(self, state)
        raise DivergedError(f"the test loss is nan after round {state.round}.")

    with monkeypatch.context() as patched:
        patched.setattr(Scorer, "score", evaluate)
        assert guard(lambda: run(tmp_path / "r", *own, "run.resume=true")) == 2
    assert not list(tmp_path.rglob("secrets*"))
    assert guard(lambda: run(tmp_path / "r", *own, "run.resume=true")) == 2
    assert [row["round"] for row in metrics(tmp_path / "r")] == [1]


@pytest.mark.parametrize("erased", [False, True])
def test_killed_while_its_origin_is_erased_a_run_writes_its_model_at_a_resume(
    tmp_path, own, monkeypatch, erased
) -> None:
    """Once its count is ended, and once zeros are in its place that are not yet removed."""
    own = (*own, "run.reproducible=true")
    straight = run(tmp_path / "straight", *own)
    directory = cut(tmp_path / "r", monkeypatch, *own, after=7)
    file = directory / "checkpoint" / origin.ORIGIN

    def forget(folder: Path) -> None:
        if erased:
            file.write_bytes(bytes(file.stat().st_size))
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(origin, "forget", forget)
        with pytest.raises(Crash):
            run(directory, *own, "run.resume=true")
    assert file.exists()
    run(directory, *own, "run.resume=true")
    np.testing.assert_array_equal(model(directory), model(straight))
    assert summary(directory)["epsilon"] == summary(straight)["epsilon"]
    assert not file.exists()


def test_metrics_that_are_a_link_are_refused_and_what_it_points_to_stays(
    tmp_path, own, monkeypatch, capsys
) -> None:
    directory = cut(tmp_path / "r", monkeypatch, *own)
    moved = (directory / "metrics.jsonl").rename(tmp_path / "elsewhere")
    moved.write_bytes(moved.read_bytes() + b"a last line that would be cut")
    before = moved.read_bytes()
    (directory / "metrics.jsonl").symlink_to(moved)
    assert "metrics.jsonl is a link" in refused(directory, capsys, *own)
    assert moved.read_bytes() == before
