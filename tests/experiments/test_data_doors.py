"""Whole runs on tables and pictures of one's own: each door is a choice of `dataset`, with keys of its own."""

import json
from pathlib import Path

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from experiments.cli.command import guard
from experiments.run_files.reader import read_config
from experiments.settings.data import load_dataset
from experiments.settings.recorded import restored
from fedmf.errors import SettingError
from runs import composed, run, simulate, summary

pytestmark = pytest.mark.long

SMALL = ("population.cohort_size=3", "population.rounds_per_epoch=2", "population.epochs=1", "model=logistic")
LEARNS = ("privacy.epsilon=null", "privacy.noise_multiplier=0", "compression.keep_probability=1")
USERS, EACH = 12, 6


def rows() -> dict[str, list[object]]:
    """Return rows whose label says whether `a` is above `b`, which logistic regression can learn."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, USERS * EACH))
    user = [f"u{n % USERS}" for n in range(len(a))]
    label = ["up" if up else "down" for up in a > b]
    return {
        "user": user,
        "a": a.tolist(),
        "b": b.tolist(),
        "label": label,
        "split": [int(n > 59) for n in range(len(a))],
    }


def write(folder: Path, door: str) -> Path:
    """Write `rows` for one door and return the path."""
    table = rows()
    path = folder / door
    if door == "by_user_csv":
        lines = [",".join(map(str, row)) for row in zip(*table.values(), strict=True)]
        path.write_text("\n".join([",".join(table), *lines]))
    elif door == "by_user_parquet":
        pyarrow.parquet.write_table(pyarrow.table(table), path)
    elif door == "by_user_hub":
        datasets.Dataset.from_dict(table).save_to_disk(str(path))
    else:
        for n, (user, label) in enumerate(zip(table["user"], table["label"], strict=True)):
            picture = np.full((3, 2), 40 if label == "up" else 200, np.uint8)
            file = path / ("test" if n > 59 else "train") / str(user) / str(label) / f"{n}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(file)
    return path


@pytest.mark.parametrize("door", ["by_user_csv", "by_user_parquet", "by_user_hub", "by_user_images"])
def test_a_model_learns_through_the_door_and_its_statement_names_the_user(tmp_path: Path, door: str) -> None:
    path = write(tmp_path, door)
    settings = [f"dataset={door}", f"dataset.path={path}", "dataset.labels=[up,down]"]
    rates = [
        "client.learning_rate=0.5",
        "client.epochs=5",
        "optimizer.learning_rate=1",
        "clipping.l2_norm=10",
    ]
    directory = run(tmp_path / "run", *SMALL, *LEARNS, *settings, *rates)
    assert (summary(directory)["clients"], summary(directory)["cohort_size"]) == (USERS, 3)
    assert summary(directory)["accuracy"] > 0.8  # one in two by chance
    assert json.loads((directory / "privacy.json").read_text())["unit_of_privacy"] == "one user = one client"
    assert (
        restored(read_config(directory)).dataset == composed(*settings).dataset
    )  # lists survive being written


def test_a_language_model_and_dealt_out_arrays_have_their_keys_on_the_command_line(tmp_path: Path) -> None:
    lines = [f"u{n % 8},to be or not,{int(n > 15)}" for n in range(20)]
    (tmp_path / "said.csv").write_text("\n".join(["who,said,split", *lines]))
    (tmp_path / "words").write_text("to\nbe\nor\nnot\n")
    settings = [
        "dataset=by_user_csv",
        f"dataset.path={tmp_path / 'said.csv'}",
        "dataset.user=who",
        "dataset.text=said",
    ]
    settings += [
        f"dataset.vocabulary={tmp_path / 'words'}",
        "dataset.length=4",
        "model=lstm",
        "model.embedding=2",
    ]
    directory = run(tmp_path / "text", *SMALL[:3], *settings, "model.hidden=2")
    assert summary(directory)["clients"] == 8
    np.savez(tmp_path / "data.npz", x=np.zeros((100, 2)), y=np.arange(100) % 4)
    settings = ["dataset=partitioned", f"dataset.path={tmp_path / 'data.npz'}", "dataset.clients=8"]
    settings += [
        "dataset.partitioner=pathological",
        "dataset.partitioner_settings={num_classes_per_partition: 3}",
    ]
    directory = run(tmp_path / "dealt", *SMALL, *settings)
    assert "made-up client (pathological partition)" in (directory / "privacy.json").read_text()
    assert restored(read_config(directory)).dataset == composed(*settings).dataset


def test_texts_of_a_table_follow_the_model_as_other_texts_do(tmp_path: Path) -> None:
    lines = [f"u{n % 4},to be or not,{int(n > 15)}" for n in range(20)]
    (tmp_path / "said.csv").write_text("\n".join(["user,said,split", *lines]))
    table = {"name": "by_user_csv", "path": str(tmp_path / "said.csv"), "text": "said", "level": None}
    assert load_dataset(table, "char_lstm").input_shape == (80,)
    assert load_dataset(table, "lstm").input_shape == (20,)
    with pytest.raises(
        SettingError, match=r"dataset\.level is 'words', but model=char_lstm predicts characters"
    ):
        load_dataset(table | {"level": "words"}, "char_lstm")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            ["dataset.user=writer"],
            "has no column 'writer'; set user to one of the 5 columns",
        ),
        (["dataset.labels=[up,left]"], "what dataset.labels=[up, left] lacks"),
        (["dataset.split=a"], "it must hold 0 or train, 1 or test"),
        (["dataset.level=words"], "dataset.level is 'words', but text is not given"),
        (["dataset.path=none.csv"], "none.csv does not exist"),
    ],
)
def test_a_mistake_at_a_door_exits_with_two_and_leaves_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: list[str], sentence: str
) -> None:
    path = write(tmp_path, "by_user_csv")
    chosen = [
        *SMALL,
        "dataset=by_user_csv",
        f"dataset.path={path}",
        *settings,
        f"run.directory={tmp_path / 'run'}",
    ]
    assert guard(lambda: simulate(composed(*chosen))) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
