"""Whole runs on users' data: text, tables, pictures, dealt-out arrays and synthetic points are used as digits are."""

import json
from pathlib import Path

import numpy as np
import pytest

import small_files
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
from runs import composed, run, simulate, summary

pytestmark = pytest.mark.long

SMALL = ("population.cohort_size=5", "population.rounds_per_epoch=4", "population.epochs=2")
LEARNS = ("privacy.epsilon=null", "privacy.noise_multiplier=0", "compression.keep_probability=1")
TINY = ("model.embedding=2", "model.hidden=2", "population.rounds_per_epoch=1", "population.epochs=1")


def statement(directory: Path) -> dict[str, object]:
    """Return privacy.json."""
    return json.loads((directory / "privacy.json").read_text())


def texts(path: Path) -> Path:
    """Write texts of 24 users who all count in the same order, which a model can learn."""
    names = ["one", "two", "three", "four", "five", "six", "seven"]
    lines = [
        {"user": f"u{user}", "tokens": [names[(user + place) % 7] for place in range(12)], "split": int(user >= 20)}
        for user in range(24)
        for _ in range(3)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path.parent / "words.txt").write_text("".join(f"{name}\n" for name in names))
    return path


def test_a_word_model_learns_from_text_and_its_statement_names_the_user(tmp_path: Path) -> None:
    data = f"dataset=by_user_text dataset.path={texts(tmp_path / 'texts.jsonl')} dataset.vocabulary={tmp_path / 'words.txt'}"
    model = "model=lstm model.embedding=8 model.hidden=16 client.learning_rate=2 client.epochs=10"
    server = "clipping.l2_norm=10 optimizer.learning_rate=1 optimizer.momentum=0"
    directory = run(tmp_path / "run", *SMALL, *LEARNS, *f"{data} {model} {server}".split())
    assert summary(directory)["clients"] == 20
    assert summary(directory)["accuracy"] > 0.5  # one in seven by chance
    assert statement(directory)["unit_of_privacy"] == "one user = one client"


def test_a_vocabulary_learnt_from_the_users_is_in_the_statement(tmp_path: Path) -> None:
    data = ["dataset=by_user_text", f"dataset.path={texts(tmp_path / 'texts.jsonl')}", "model=lstm"]
    assert "an uncovered release" in str(statement(run(tmp_path / "run", *SMALL, *data, *TINY)))


@pytest.mark.parametrize(("model", "classes"), [("char_lstm", 100), ("lstm", 11)])
def test_texts_are_split_into_what_the_model_predicts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, classes: int
) -> None:
    data = ["dataset=by_user_text", f"dataset.path={texts(tmp_path / 'texts.jsonl')}", f"model={model}", *TINY]  # fmt: skip
    data += [] if model == "char_lstm" else [f"dataset.vocabulary={tmp_path / 'words.txt'}"]
    source = "printable ASCII" if model == "char_lstm" else f"the 7 words of {tmp_path / 'words.txt'}"
    note = f"dataset by_user_text: 0.0% of the tokens of the test texts are not in {source}."
    directory = run(tmp_path / "run", *SMALL, *data)
    shown = capsys.readouterr()
    assert shown.err.count(note) == 1
    assert json.loads(shown.out)["clients"] == 20  # and nothing but the document on stdout
    assert door.load(directory).model().embedding.weight.shape[0] == classes
    evaluate(compose("evaluate", [f"directory={directory}", "output=json"], EvaluateSettings))
    scored = capsys.readouterr()
    assert json.loads(scored.out)["examples"] == 12
    assert source in scored.err
    build_deployed(composed("engine=deployment", "population.min_available=20", *SMALL, *data))
    assert note in capsys.readouterr().err
    node = [override for override in data if not override.startswith("population.")]
    node_check(compose("node_check", ["clients=3", "output=json", *node], NodeSettings))
    assert note in capsys.readouterr().err


def test_the_texts_of_a_node_or_a_table_follow_the_model(tmp_path: Path) -> None:
    data = f"clients=3 dataset=by_user_text dataset.path={texts(tmp_path / 'texts.jsonl')}"
    lines = [f"u{n % 4},to be or not,{int(n > 15)}" for n in range(20)]
    (tmp_path / "said.csv").write_text("\n".join(["user,said,split", *lines]))
    table = {"name": "by_user_csv", "path": str(tmp_path / "said.csv"), "text": "said", "level": None}
    for model, shape in (("char_lstm", (80,)), ("lstm", (20,)), ("logistic", (20,))):
        assert Node(node_settings(f"{data} model={model}")).dataset.input_shape == shape
        assert load_dataset(table, model).input_shape == shape
    wanted = r"dataset\.level is 'words', but model=char_lstm predicts characters"
    with pytest.raises(SettingError, match=wanted):
        load_dataset(table | {"level": "words"}, "char_lstm")


def test_the_statement_tells_a_capped_user_from_a_cut_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    user = np.arange(200) // 10
    np.savez(tmp_path / "data.npz", x=rng.random((200, 4)), y=np.arange(200) % 3, user=user)
    settings = ["dataset=by_user_npz", f"dataset.path={tmp_path / 'data.npz'}", "model=logistic", *TINY[2:]]
    capped, cut = (
        statement(run(tmp_path / key, "population.cohort_size=5", *settings, f"dataset.{key}=3"))
        for key in ("max_examples_per_user", "examples_per_client")
    )
    assert (capped["clients"], cut["clients"]) == (20, 60)
    assert capped["unit_of_privacy"] == "one user = one client, with at most the user's first 3 examples"
    assert cut["unit_of_privacy"].endswith("the unit of privacy is the cut client, not the user")
    shared = "20 of 20 users of the test split also train: their test examples are treated as public"
    assert shared in " ".join(capped["warnings"])
    assert shared in " ".join(cut["warnings"])


@pytest.mark.parametrize("form", ["own_csv", "own_parquet", "own_hub", "own_pictures", "own_texts", "dealt"])
def test_every_kind_of_file_makes_a_run_whose_statement_names_the_unit_and_which_records_its_settings(
    tmp_path: Path, form: str
) -> None:
    given = small_files.settings(form, tmp_path)
    settings = [f"dataset={given.pop('name')}"]
    settings += [f"dataset.{key}={json.dumps(value).replace(chr(34), '')}" for key, value in given.items()]
    model = ["model=lstm", *TINY[:2]] if form == "own_texts" else ["model=logistic"]
    directory = run(tmp_path / "run", "population.cohort_size=3", *TINY[2:], "privacy.delta=1e-2", *settings, *model)  # fmt: skip
    unit = statement(directory)["unit_of_privacy"]
    assert "made-up client" in unit if form == "dealt" else unit == "one user = one client"
    assert restored(read_config(directory)).dataset == composed(*settings).dataset  # lists survive


def test_a_mistake_about_a_table_exits_with_two_and_leaves_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = small_files.own_csv(tmp_path / "data.csv")
    chosen = ["dataset=by_user_csv", f"dataset.path={path}", "dataset.user=writer", f"run.directory={tmp_path / 'run'}"]  # fmt: skip
    assert guard(lambda: simulate(composed(*chosen))) == 2
    assert "has no column 'writer'; set user to one of the 5 columns" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
