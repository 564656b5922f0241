"""Whole runs on users' data: text, tables, pictures, dealt-out arrays and synthetic points are used as digits are."""

import json
from pathlib import Path

import pytest

import small_files
from experiments import run as door
from experiments.deployment.node import NodeSettings
from experiments.deployment.server import build_deployed
from experiments.evaluate import EvaluateSettings, evaluate
from experiments.node_check import node_check
from experiments.run_files.reader import read_config
from experiments.settings.compose import compose
from experiments.settings.data import load_dataset
from experiments.settings.recorded import restored
from fedmf.errors import SettingError
from runs import composed, run

pytestmark = pytest.mark.long

TINY = ("model.embedding=2", "model.hidden=2", "population.rounds_per_epoch=1", "population.epochs=1")
SMALL = ("population.cohort_size=2", *TINY[2:], "privacy.delta=1e-2")


def statement(directory: Path) -> dict[str, object]:
    """Return privacy.json."""
    return json.loads((directory / "privacy.json").read_text())


def texts(folder: Path) -> tuple[Path, Path]:
    """Write texts of three users and the list of their words."""
    path = small_files.jsonl(folder / "texts.jsonl")
    said = [json.loads(line)["text"].split() for line in path.read_text().splitlines()]
    (folder / "words.txt").write_text("\n".join(sorted({word for words in said for word in words})))
    return path, folder / "words.txt"


@pytest.mark.parametrize("model", ["char_lstm", "lstm"])
def test_texts_are_split_into_what_the_model_predicts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str
) -> None:
    path, words = texts(tmp_path)
    data = ["dataset=by_user_text", f"dataset.path={path}", f"model={model}", *TINY[:2]]
    data += [] if model == "char_lstm" else [f"dataset.vocabulary={words}"]
    known = 96 if model == "char_lstm" else len(words.read_text().splitlines())
    source = "printable ASCII" if model == "char_lstm" else f"the {known} words of {words}"
    note = f"dataset by_user_text: 0.0% of the tokens of the test texts are not in {source}."
    directory = run(tmp_path / "run", *SMALL, *data)
    shown = capsys.readouterr()
    assert shown.err.count(note) == 1
    assert json.loads(shown.out)["clients"] == 3  # the document alone on stdout
    assert door.load(directory).model().embedding.weight.shape[0] == known + 4
    evaluate(compose("evaluate", [f"directory={directory}", "output=json"], EvaluateSettings))
    scored = capsys.readouterr()
    assert json.loads(scored.out)["examples"] > 0
    assert source in scored.err
    build_deployed(composed("engine=deployment", "population.min_available=3", *SMALL, *data))
    assert note in capsys.readouterr().err
    length = 80 if model == "char_lstm" else 20
    public = f"public={{shape:[{length}],classes:{known + 4},task:next_token}}"
    node_check(compose("node_check", ["clients=3", "output=json", public, *data], NodeSettings))
    assert json.loads(capsys.readouterr().out)["clients"] == 3


def test_a_level_of_text_that_the_model_does_not_predict_is_refused(tmp_path: Path) -> None:
    data = {"name": "by_user_text", "path": str(texts(tmp_path)[0]), "level": "words"}
    wanted = r"dataset\.level is 'words', but model=char_lstm predicts characters"
    with pytest.raises(SettingError, match=wanted):
        load_dataset(data, "char_lstm")


def test_the_statement_tells_a_capped_user_from_a_cut_one(tmp_path: Path) -> None:
    data = ["dataset=by_user_npz", f"dataset.path={small_files.npz(tmp_path / 'data.npz')}"]
    for key, unit in (
        ("max_examples_per_user", "one user = one client, with at most the user's first 2 examples"),
        ("examples_per_client", "the unit of privacy is the cut client, not the user"),
    ):
        said = statement(run(tmp_path / key, *SMALL, *data, f"dataset.{key}=2"))
        assert said["unit_of_privacy"].endswith(unit)
        assert "users of the test split also train" in " ".join(said["warnings"])


@pytest.mark.parametrize("form", ["own_csv", "own_parquet", "own_hub", "own_pictures", "own_texts", "dealt"])
def test_every_kind_of_file_makes_a_run_whose_statement_names_the_unit_and_which_records_its_settings(
    tmp_path: Path, form: str
) -> None:
    given = small_files.settings(form, tmp_path)
    settings = [f"dataset={given.pop('name')}"]
    settings += [f"dataset.{key}={json.dumps(value).replace(chr(34), '')}" for key, value in given.items()]
    model = ["model=lstm", *TINY[:2]] if form == "own_texts" else ["model=logistic"]
    directory = run(tmp_path / "run", *SMALL, *settings, *model)
    unit = statement(directory)["unit_of_privacy"]
    assert "made-up client" in unit if form == "dealt" else unit == "one user = one client"
    assert restored(read_config(directory)).dataset == composed(*settings).dataset  # lists survive
