"""What is resumed after a crash is the run that began: its own directory, all that it released, its own clients."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from experiments import run as door
from experiments.cli.command import guard
from experiments.session.recorder import Scorer
from fedmf.errors import DivergedError
from runs import behind_round, cut, metrics, refused, run
from server import copies
from server.checkpoint import Checkpoint

pytestmark = pytest.mark.long

SMALL = (
    *("dataset=by_user_npz", "population.cohort_size=4", "population.rounds_per_epoch=4"),
    *("population.epochs=2", "run.checkpoint_every=2", "optimizer.learning_rate=0.1"),
)
RESUME, ACCEPT = "run.resume=true", "run.accept_copy=true"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the marks of this test's runs are."""
    monkeypatch.setenv("FEDMF_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def people(path: Path, order: np.ndarray, **changes: object) -> Path:
    """Write the data of 20 people, who are numbered in `order`."""
    rng = np.random.default_rng(0)
    x, y = rng.random((20, 5, 4)), rng.integers(0, 3, (20, 5))
    x[:, 0], y[:, 0] = 0.5, 2  # test rows, the same whoever they are of
    arrays = {"x": x[order].reshape(100, 4), "y": y[order].ravel(), "user": np.repeat(np.arange(20), 5)}
    np.savez(path, **{**arrays, "split": np.tile([1, 0, 0, 0, 0], 20), **changes})  # type: ignore[arg-type]
    return path


@pytest.fixture
def own(tmp_path: Path) -> tuple[str, ...]:
    """The settings of a run on a file of its own."""
    return (*SMALL, f"dataset.path={people(tmp_path / 'people.npz', np.arange(20))}")


@pytest.fixture
def begun(tmp_path: Path, own: tuple[str, ...]) -> Path:
    """A run that was killed when it had shown round 3."""
    return cut(tmp_path / "r", *own, after=3)


def set_back(directory: Path, snapshot: Path) -> None:
    """Put an older state into the same directory."""
    for path in sorted(directory.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    shutil.copytree(snapshot, directory, dirs_exist_ok=True)


def resume(directory: Path, *settings: str) -> None:
    """Run the rounds that are left."""
    run(directory, *settings, RESUME)
    assert [row["round"] for row in metrics(directory)] == list(range(1, 9))


def test_other_people_other_data_and_another_order_are_refused(tmp_path, own, begun, capsys) -> None:
    file = tmp_path / "people.npz"
    y, few = np.load(file)["y"], np.repeat(np.arange(20), 5)
    y[1] = (y[1] + 1) % 3  # one label of one person
    few[:5] = 1  # two people became one
    for changes, says in (
        ({"order": np.random.default_rng(1).permutation(20)}, "with the same in another order"),
        ({"y": y}, "with other clients than the data now hold"),
        ({"user": few}, "began with 20 clients, and the data now hold 19"),
    ):
        people(file, **{"order": np.arange(20), **changes})
        assert says in refused(capsys, begun, *own, RESUME)
    people(file, np.arange(20))
    resume(begun, *own)


def test_a_copy_of_a_run_is_refused_and_the_run_itself_and_a_moved_one_are_not(
    tmp_path, own, begun, capsys
) -> None:
    copy = shutil.copytree(begun, tmp_path / "copy")
    said = refused(capsys, copy, *own, RESUME)
    assert all(words in said for words in (f"this directory is a copy: the run began in {begun}", ACCEPT))
    resume(begun.rename(tmp_path / "moved"), *own)


def test_on_another_machine_a_run_is_refused_and_continues_once_it_is_accepted(
    own, begun, monkeypatch, capsys, caplog
) -> None:
    monkeypatch.setattr(copies, "machine_digest", lambda: "another")
    assert "began in a directory of another machine" in refused(capsys, begun, *own, RESUME)
    cut(begun, *own, RESUME, ACCEPT, after=2)
    assert "It continues nevertheless" in caplog.text
    resume(begun, *own)  # it is at home here now


def test_other_test_rows_are_refused(own, begun, capsys) -> None:
    path = Path(own[-1].removeprefix("dataset.path="))
    with np.load(path) as held:
        changed = np.where(held["split"][:, None] == 1, held["x"] / 2, held["x"])
    people(path, np.arange(20), x=changed)
    assert "the digest of the test examples is" in refused(capsys, begun, *own, RESUME)


@pytest.mark.parametrize("shown", [0, 3])
def test_an_older_state_of_a_run_is_refused(tmp_path, own, capsys, shown):
    directory = cut(tmp_path / "r", *own, after=shown)
    snapshot = shutil.copytree(directory, tmp_path / "snapshot")
    cut(directory, *own, RESUME, after=1)
    set_back(directory, snapshot)
    says = refused(capsys, directory, *own, RESUME)
    assert (
        f"ends at round {shown}, but this is an older state: {shown + 1} of its rounds were released" in says
    )
    resume(directory, *own, ACCEPT)  # a person's word


def test_of_two_copies_that_were_both_accepted_only_one_releases_a_round(
    tmp_path, own, begun, monkeypatch, capsys
) -> None:
    copy, real = shutil.copytree(begun, tmp_path / "copy"), Checkpoint.commit

    def commit(self, release):  # type: ignore[no-untyped-def]
        if self.folder.parent == begun and release.round == 5:
            cut(copy, *own, RESUME, ACCEPT, after=2)
        real(self, release)

    monkeypatch.setattr(Checkpoint, "commit", commit)
    capsys.readouterr()
    assert guard(lambda: run(begun, *own, RESUME)) == 2
    assert "round 5 of the run in" in (says := capsys.readouterr().err)
    assert "was released from another copy" in says
    assert (len(metrics(begun)), len(metrics(copy))) == (4, 5)


def test_a_lost_mark_of_released_rounds_is_asked_for_and_written_again_once_accepted(
    own, begun, state, capsys
) -> None:
    (mark,) = state.iterdir()
    assert mark.read_text() == "3\n"
    mark.unlink()
    said = refused(capsys, begun, *own, RESUME)
    assert f"{state} does not say how many of its rounds were released" in said
    door.resume(begun, accept_copy=True)
    assert [path.read_text() for path in state.iterdir()] == ["8\n"]
    assert len(metrics(begun)) == 8


def ends(directory: Path, capsys: pytest.CaptureFixture[str], *settings: str) -> None:
    """Resume a run that diverged: its keys are erased, and no round follows however often that is tried."""
    for _ in range(3):
        assert guard(lambda: run(directory, *settings, RESUME)) == 2
        assert not [*directory.rglob("secrets*")]
        assert [row["round"] for row in metrics(directory)] == [1]
    assert "after round 1" in capsys.readouterr().err


def test_a_divergence_found_while_resuming_erases_the_key_and_no_round_follows(
    tmp_path, own, capsys, state
) -> None:
    """The crash comes between the release and its row; the loss is not finite, though the model may be."""
    settings = (*own, "optimizer.learning_rate=3e38", "optimizer.momentum=0", "privacy.epsilon=1")
    with behind_round(Checkpoint, "commit", 1):
        run(tmp_path / "r", *settings)
    assert list(tmp_path.rglob("secrets*"))
    ends(tmp_path / "r", capsys, *settings)
    assert [path.read_text() for path in state.iterdir()] == ["1\n"]


def test_a_divergence_that_a_crash_hid_after_its_row_ends_the_run_as_well(
    tmp_path, own, monkeypatch, capsys
) -> None:
    """The row is there without a score, the model is finite, its loss is not: only another score tells."""
    cut(tmp_path / "r", *own, after=1)

    def score(self, state):  # type: ignore[no-untyped-def]
        raise DivergedError(f"the test loss is nan after round {state.round}.")

    monkeypatch.setattr(Scorer, "score", score)
    ends(tmp_path / "r", capsys, *own)
