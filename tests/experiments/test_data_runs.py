"""Whole runs on data of one's own: text, tables, pictures, dealt-out arrays and made-up points go the same way as digits."""

import json
from pathlib import Path

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from experiments import run as door
from experiments.cli.command import guard
from experiments.deployment.node import Node, NodeSettings, node_settings
from experiments.deployment.server import build_deployed
from experiments.evaluate import EvaluateSettings, evaluate
from experiments.node_check import node_check
from experiments.run_files.reader import read_config
from experiments.settings.compose import compose
from experiments.settings.data import load_dataset
from experiments.settings.recorded import restored
from fedmf.errors import SettingError
from published import write_sqlite
from runs import composed, run, simulate, summary

pytestmark = pytest.mark.long

SMALL = ("population.cohort_size=5", "population.rounds_per_epoch=4", "population.epochs=2")
LEARNS = ("privacy.epsilon=null", "privacy.noise_multiplier=0", "compression.keep_probability=1")


def texts(path: Path) -> Path:
    """Write texts of 24 users who all count in the same order, which a model can learn."""
    names = ["one", "two", "three", "four", "five", "six", "seven"]
    lines = [
        {
            "user": f"u{user}",
            "tokens": [names[(user + place) % 7] for place in range(12)],
            "split": int(user >= 20),
        }
        for user in range(24)
        for _ in range(3)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path.parent / "words.txt").write_text("".join(f"{name}\n" for name in names))
    return path


def test_a_word_model_learns_from_text_and_its_statement_names_the_user(tmp_path: Path) -> None:
    data = texts(tmp_path / "texts.jsonl")
    settings = [
        "dataset=by_user_text",
        f"dataset.path={data}",
        f"dataset.vocabulary={tmp_path / 'words.txt'}",
        "model=lstm",
        "model.embedding=8",
        "model.hidden=16",
        "client.learning_rate=2",
        "client.epochs=10",
        "clipping.l2_norm=10",
        "optimizer.learning_rate=1",
        "optimizer.momentum=0",
    ]
    directory = run(tmp_path / "run", *SMALL, *LEARNS, *settings)
    assert summary(directory)["clients"] == 20
    assert summary(directory)["accuracy"] > 0.5  # one in seven by chance
    assert json.loads((directory / "privacy.json").read_text())["unit_of_privacy"] == "one user = one client"


def test_a_vocabulary_learnt_from_the_users_is_in_the_statement(tmp_path: Path) -> None:
    data = texts(tmp_path / "texts.jsonl")
    settings = ["dataset=by_user_text", f"dataset.path={data}", "model=lstm", "model.embedding=2", "model.hidden=2"]  # fmt: skip
    directory = run(tmp_path / "run", *SMALL, *settings)
    assert "an uncovered release" in (directory / "privacy.json").read_text()
    assert "an uncovered release" in (directory / "report.html").read_text()


def test_made_up_points_can_be_learnt(tmp_path: Path) -> None:
    settings = ["dataset=synthetic", "dataset.clients=100", "client.learning_rate=0.1", "optimizer.learning_rate=1"]  # fmt: skip
    directory = run(tmp_path / "run", *SMALL, *LEARNS, *settings)
    assert summary(directory)["accuracy"] > 0.4  # one in ten by chance


TINY = ("model.embedding=2", "model.hidden=2", "population.rounds_per_epoch=1", "population.epochs=1")


@pytest.mark.parametrize(("model", "shape", "classes"), [("char_lstm", 80, 100), ("lstm", 20, 11)])
def test_texts_are_parted_into_what_the_model_predicts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, shape: int, classes: int
) -> None:
    data = [f"dataset.path={texts(tmp_path / 'texts.jsonl')}", f"model={model}", *TINY]
    data += [] if model == "char_lstm" else [f"dataset.vocabulary={tmp_path / 'words.txt'}"]
    directory = run(tmp_path / "run", *SMALL, "dataset=by_user_text", *data)
    shown = capsys.readouterr()
    source = "printable ASCII" if model == "char_lstm" else f"the 7 words of {tmp_path / 'words.txt'}"
    assert (
        shown.err.count(f"dataset by_user_text: 0.0% of the tokens of the test texts are not in {source}.")
        == 1
    )
    assert json.loads(shown.out)["clients"] == 20  # and nothing but the document on stdout
    assert door.load(directory).model().embedding.weight.shape[0] == classes
    evaluate(compose("evaluate", [f"directory={directory}", "output=json"], EvaluateSettings))
    scored = capsys.readouterr()
    assert json.loads(scored.out)["examples"] == 12
    assert source in scored.err


def test_the_texts_of_a_node_follow_the_model_in_its_own_settings(tmp_path: Path) -> None:
    data = f"clients=3 dataset=by_user_text dataset.path={texts(tmp_path / 'texts.jsonl')}"
    for model, shape in (("char_lstm", (80,)), ("lstm", (20,)), ("logistic", (20,))):
        assert Node.of(node_settings(f"{data} model={model}")).dataset.input_shape == shape


def test_a_server_and_a_nodes_operator_are_told_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = [
        "dataset=by_user_text",
        f"dataset.path={texts(tmp_path / 'texts.jsonl')}",
        "model=char_lstm",
        *TINY[:2],
    ]
    build_deployed(composed("engine=deployment", "population.min_available=20", *SMALL, *data))
    assert "tokens of the test texts are not in printable ASCII" in capsys.readouterr().err
    node_check(compose("node_check", ["clients=3", "output=json", *data], NodeSettings))
    assert "tokens of the test texts are not in printable ASCII" in capsys.readouterr().err


def test_the_statement_tells_a_capped_user_from_a_cut_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    user = np.arange(200) // 10
    np.savez(tmp_path / "data.npz", x=rng.random((200, 4)), y=np.arange(200) % 3, user=user)
    settings = ["dataset=by_user_npz", f"dataset.path={tmp_path / 'data.npz'}", "model=logistic", *TINY[2:]]
    statements = {}
    for key in ("max_examples_per_user", "examples_per_client"):
        directory = run(tmp_path / key, "population.cohort_size=5", *settings, f"dataset.{key}=3")
        statements[key] = json.loads((directory / "privacy.json").read_text())
    capped, cut = statements["max_examples_per_user"], statements["examples_per_client"]
    assert (capped["clients"], cut["clients"]) == (20, 60)
    assert capped["unit_of_privacy"] == "one user = one client, with at most the user's first 3 examples"
    assert cut["unit_of_privacy"].endswith("the unit of privacy is the cut client, not the user")
    shared = "20 of 20 users of the test split also train: their test examples are treated as public"
    assert shared in " ".join(capped["warnings"])
    assert shared in " ".join(cut["warnings"])


def test_the_statement_of_stack_overflow_counts_the_test_users_who_train(tmp_path: Path) -> None:
    tokens = {"tokens": [b"how to do", b"to do"]}
    users = {
        "train": {str(user): tokens for user in range(1, 9)},
        "test": {str(user): tokens for user in (1, 2, 3, 11)},
        "heldout": {"10": tokens, "20": tokens},
    }
    path = write_sqlite(tmp_path / "stackoverflow.sqlite", users)
    (tmp_path / "stackoverflow.word_count").write_text("to 9\ndo 8\nhow 2\n")
    settings = ("dataset=stackoverflow", f"dataset.path={path}", "model=lstm", *TINY)
    settings += (f"dataset.vocabulary={tmp_path / 'stackoverflow.word_count'}",)
    for test, shared in (("test", True), ("heldout", False)):
        directory = run(tmp_path / test, "population.cohort_size=4", *settings, f"dataset.test={test}")
        said = json.loads((directory / "privacy.json").read_text())["warnings"]
        assert (
            any(sentence.startswith("3 of 4 users of the test split also train") for sentence in said)
            == shared
        )
        assert any("counted its words among the training users" in sentence for sentence in said)


TABLE = ("population.cohort_size=3", "population.rounds_per_epoch=2", "population.epochs=1", "model=logistic")
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
    rates = ["client.learning_rate=0.5", "client.epochs=5", "optimizer.learning_rate=1", "clipping.l2_norm=10"]  # fmt: skip
    directory = run(tmp_path / "run", *TABLE, *LEARNS, *settings, *rates)
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
    settings = ["dataset=by_user_csv", f"dataset.path={tmp_path / 'said.csv'}", "dataset.user=who", "dataset.text=said"]  # fmt: skip
    settings += [f"dataset.vocabulary={tmp_path / 'words'}", "dataset.length=4", "model=lstm", "model.embedding=2"]  # fmt: skip
    directory = run(tmp_path / "text", *TABLE[:3], *settings, "model.hidden=2")
    assert summary(directory)["clients"] == 8
    np.savez(tmp_path / "data.npz", x=np.zeros((100, 2)), y=np.arange(100) % 4)
    settings = ["dataset=partitioned", f"dataset.path={tmp_path / 'data.npz'}", "dataset.clients=8"]
    settings += ["dataset.partitioner=pathological", "dataset.partitioner_settings={num_classes_per_partition: 3}"]  # fmt: skip
    directory = run(tmp_path / "dealt", *TABLE, *settings)
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
        (["dataset.user=writer"], "has no column 'writer'; set user to one of the 5 columns"),
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
    chosen = [*TABLE, "dataset=by_user_csv", f"dataset.path={path}", *settings, f"run.directory={tmp_path / 'run'}"]  # fmt: skip
    assert guard(lambda: simulate(composed(*chosen))) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
