"""Next-word prediction for the sparsified matrix mechanism: its page from real runs on made-up texts, and what it is held against."""

import gzip
import hashlib
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from client.data.text import SPECIAL
from client.models import lstm
from experiments.cli import command
from experiments.reproduce import (
    Means,
    sgmf_text,
    sgmf_text_paper,
    sgmf_text_task as task,
    sgmf_text_words,
    sgmf_training,
)
from experiments.reproduce.__main__ import ReproduceSettings, reproduce
from experiments.reproduce.results import Results
from experiments.reproduce.sgmf_text_task import NAME, SIZES
from experiments.reproduce.sgmf_training import EPOCH, HONAKER, INDEPENDENT, WHOLE_RUN
from experiments.reproduce.trials import Outcome, Trial, prepare
from experiments.run_files.same_settings import fixed
from experiments.settings.compose import compose
from experiments.settings.reference import CONF
from experiments.settings.schema import Settings

RESULTS = CONF.parent / "docs" / "results"

pytestmark = pytest.mark.long

SMALL = SIZES["small"]
TINY = replace(
    SMALL,
    task=replace(SMALL.task, overrides=tuple(
        "model.embedding=3" if one == "model.embedding=15" else "model.hidden=4" if one == "model.hidden=24" else one
        for one in SMALL.task.overrides)),
    dimension=28213, cohort=4, rounds=2, epochs=2, keep_probabilities={NAME: (0.5,)}, epsilons=(32.0,), seeds=2, more=0,
)  # fmt: skip
TEXT = "return the value of the function , and the object is a module ."
OFTEN = (*(["the"] * 5), *([","] * 4), *(["of"] * 3), "is", "a")


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """Return a file of made-up texts in the format of the real one, which the page takes for it."""
    random = np.random.default_rng(0)
    lines = [
        json.dumps({"user": f"site:{user}", "type": "comment", "date": "2016-08-02T15:48:56.970", "score": 1, "tokens": " ".join(random.choice([*TEXT.split(), *OFTEN, "qubit"], 18))})
        for user in range(20)
        for _ in range(5)
    ]  # fmt: skip
    path = tmp_path / "made_up.jsonl.gz"
    content = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(content))
    monkeypatch.setattr(task, "TEXTS", hashlib.sha256(content).hexdigest())
    return path


@pytest.fixture
def made(tmp_path):
    """Return a folder with a public vocabulary, which knows the words of `TEXT`."""
    directory = tmp_path / "results"
    directory.mkdir()
    words = dict.fromkeys(TEXT.split())
    (directory / task.WORDS).write_text("".join(f"{word}\n" for word in [*words, *(f"w{i}" for i in range(task.VOCABULARY - len(words)))]))  # fmt: skip
    return directory


def called(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        command.run(reproduce, "reproduce", ReproduceSettings, "doc", arguments)
    said = capsys.readouterr()
    return caught.value.code, said.out, said.err


def test_all_that_the_issue_asks_for_is_compared():
    assert set(sgmf_text.PAGE.mechanisms) == {INDEPENDENT, HONAKER, EPOCH, WHOLE_RUN}
    for size in SIZES.values():
        assert len(size.epsilons) >= 2
        assert len(size.keep_probabilities[NAME]) >= 2
        assert size.seeds >= 5
        assert size.seeds + size.more >= 10
        seeds = task.study(size, (EPOCH,)).seeds
        assert not {*seeds.tuning} & {*range(10)}
    assert task.VOCABULARY == 4000


def test_the_networks_have_as_many_parameters_as_the_sizes_say():
    for name, embedding, hidden in (("small", 15, 24), ("laptop", 15, 24)):
        assert f"model.embedding={embedding}" in SIZES[name].task.overrides
        assert f"model.hidden={hidden}" in SIZES[name].task.overrides
        model = lstm((20,), task.VOCABULARY + SPECIAL, embedding, hidden)
        assert sum(one.numel() for one in model.parameters()) == SIZES[name].dimension
        assert f"{SIZES[name].dimension:,} parameters" in SIZES[name].task.words


def test_a_row_differs_in_the_noise_and_runs_without_noise_in_nothing_else():
    (row,) = task.study(replace(SMALL, epsilons=(8.0,), keep_probabilities={NAME: (1.0,)}), sgmf_text.PAGE.mechanisms).rows  # fmt: skip
    settings = [fixed(compose("config", one.overrides, Settings)) for one in (*row, task.no_noise(SMALL))]
    usual = settings[0]
    for own in settings[1:-1]:
        differ = {key for key in own if own[key] != usual[key]}
        assert {"mechanism.name"} <= differ <= {"mechanism.name", "workload"}
    differ = {key for key in usual if settings[-1].get(key) != usual[key]}
    assert differ == {"privacy.epsilon", "privacy.noise_multiplier"}
    assert settings[-1]["privacy.noise_multiplier"] == 0


def test_a_suggestion_is_a_word_and_one_of_five():
    """Outputs: the special tokens are largest, then words 9, 8, 7, 6, 5, and 4 is the sixth."""
    outputs = torch.arange(10.0).repeat(3, 1)
    outputs[:, :SPECIAL] = 100.0
    metric = task.KnownWords()
    metric.add(outputs, torch.tensor([9, 5, 4]))
    assert metric.value() == pytest.approx(2 / 3)


def test_real_runs_become_a_page_a_plot_and_nothing_is_computed_twice(made, texts, monkeypatch):
    page = replace(
        sgmf_text.PAGE, mechanisms=(INDEPENDENT, EPOCH), found={"small": "They differ."}
    )  # for time
    found = sgmf_text.make(made, Means(data=texts), page, "small", TINY)
    text = (made / f"{NAME}.md").read_text()
    assert (made / f"{NAME}.png").read_bytes().startswith(b"\x89PNG")
    assert found.figures == (made / f"{NAME}.png", made / f"{NAME}_loss.png")
    assert (made / f"{NAME}_loss.png").read_bytes() != (made / f"{NAME}.png").read_bytes()
    assert len(found.rows) == len(page.mechanisms)
    assert "Unfinished" not in text
    assert "**What we find.** They differ." in text
    for _, mechanism, keep, _, mean, *_ in found.rows:
        cells = next(line for line in text.splitlines() if line.startswith(f"| {keep:g} | 32 |")).split("|")
        assert f"{mean:.1f} ±" in cells[3 + page.mechanisms.index(mechanism)]
    always = Results(made / task.RUNS).find(task.same_words(TINY))
    assert always is not None
    assert f"| {task.SAME_WORDS} | {100 * always.accuracy:.1f} | {always.loss:.2f} | – | – |" in text
    assert f"| {task.NO_NOISE} | " in text
    lines = (made / task.RUNS).read_bytes()
    runs = [json.loads(line) for line in lines.splitlines()]
    tuned = [run for run in runs if run["held_out"]]
    assert len(tuned) >= 9  # three rates of three cells, compared by the loss
    assert all(run["accuracy"] == pytest.approx(math.exp(-run["loss"])) for run in tuned)
    assert not any(
        run["loss"] and run["accuracy"] == pytest.approx(math.exp(-run["loss"]))
        for run in runs
        if not run["held_out"]
    )
    monkeypatch.setattr(task, "play", lambda *_, **__: pytest.fail("it is there"))
    sgmf_text.make(made, Means(data=texts), page, "small", TINY)
    assert (made / f"{NAME}.md").read_text() == text
    assert (made / task.RUNS).read_bytes() == lines


def test_the_words_that_are_always_suggested_are_those_of_the_training_texts(made, tmp_path):
    """Users train on five words; two in eight of the test texts' words, unknown ones left out, are among these."""
    lines = [{"user": user, "split": split, "tokens": tokens}
             for user in range(20) for split, tokens in ((0, "return the value of function is"), (0, "return the value of function"),
                                                         (1, "and object is a module , return function qubit"))]  # fmt: skip
    path = tmp_path / "split.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    outcome = task.play(task.same_words(TINY), path, made / task.WORDS)
    assert outcome.accuracy == pytest.approx(2 / 8)
    # 20 users train 5 + 6 words and 2 end marks: of 260 + 4,004 tokens return, the, value, of, function and the end are there 41 times, is 21
    right = 20 * 2 + 1
    assert outcome.loss == pytest.approx(
        -(3 * math.log(right / 4264) + math.log(21 / 4264) + 5 * math.log(1 / 4264) + math.log(1 / 4264))
        / 10,
        abs=1e-4,
    )


def test_the_vocabulary_knows_no_word_of_the_users(made, texts):
    """qubit is in the texts and not in the public file: it is out of vocabulary, and nothing is said to be learnt."""
    path = f"dataset.vocabulary={json.dumps(str(made / task.WORDS))}"
    one = task.no_noise(TINY)
    experiment, _ = prepare(Trial(replace(one, overrides=(*one.overrides, path)), 1.0, 0), texts)
    assert not any("vocabulary" in said for said in experiment.dataset.uncovered)
    assert experiment.dataset.classes == task.VOCABULARY + SPECIAL


def test_a_vocabulary_that_is_not_there_is_made_of_public_text_and_never_beside_runs(
    tmp_path, texts, capsys, monkeypatch
):
    """Counted in Python's documentation, not in the texts; where its words differ from those of docs/results that is said."""
    assert task.public_words(RESULTS).read_bytes() == (RESULTS / task.WORDS).read_bytes()
    ours = (RESULTS / task.WORDS).read_text().split()
    for words, is_warned in ((ours, False), ([*ours[:-1], "otherwise"], True)):
        directory = tmp_path / str(is_warned)
        directory.mkdir()
        with monkeypatch.context() as patch:
            patch.setattr(task, "python_words", lambda size, words=words: words[:size])
            assert task.public_words(directory).read_text().split() == words
        assert ("these are not the words of docs/results" in capsys.readouterr().err) == is_warned
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / task.RUNS).write_text("")
    code, _, err = called(capsys, f"name={NAME}", f"data={texts}", f"directory={tmp_path}/new")
    assert code == 2
    assert f"put back the file that the runs in {tmp_path}/new/{task.RUNS} were made with" in err
    assert not (tmp_path / "new" / task.WORDS).exists()


def test_the_page_says_what_is_no_better_than_the_most_frequent_words(tmp_path):
    results = Results(tmp_path / task.RUNS)
    results.add(task.same_words(SMALL), Outcome(0.20, 5.1, 1.0))
    for mechanism, accuracies in ((INDEPENDENT, (0.19, 0.23)), (WHOLE_RUN, (0.24, 0.26))):
        for seed, accuracy in enumerate(accuracies):
            results.add(Trial(sgmf_training.cell(SMALL, mechanism, 1.0, 64.0), 0.1, seed), Outcome(accuracy, 5.0 + accuracy, 60.0))  # fmt: skip
    sgmf_text.reproduce(tmp_path, Means(compute=False))
    page = (tmp_path / f"{NAME}.md").read_text()
    assert "| 1 | 64 | +1.0 ± 2.0, **no better** | – | – | +5.0 ± 1.0 |" in page
    assert "| 1 | 64 | 5.21 ± 0.02 | – | – | 5.25 ± 0.01 |" in page
    assert "What we find" not in page
    assert "Unfinished: 4 of" in page


def test_a_diverged_run_has_no_mean_loss(tmp_path):
    results = Results(tmp_path / "a.jsonl")
    one = sgmf_training.cell(SMALL, EPOCH, 1.0, 8.0)
    results.add(Trial(one, 0.1, 0), Outcome(0.2, 5.0, 1.0))
    assert sgmf_text.loss_text(results, one) == "5.00"
    results.add(Trial(one, 0.1, 1), Outcome(0.0, None, 1.0))
    assert sgmf_text.loss_text(results, one) == "–"
    assert sgmf_text.mean_loss(results, one) is None


def test_mistakes_are_refused_before_anything_is_written(tmp_path, capsys):
    new = tmp_path / "new"
    code, _, err = called(capsys, f"name={NAME}", f"directory={new}")
    assert (code, new.exists()) == (2, False)
    assert f"data is null, but {NAME} trains on texts by user" in err
    other = tmp_path / "other.jsonl"
    other.write_text('{"user": "a", "text": "b"}\n')
    code, _, err = called(capsys, f"name={NAME}", f"data={other}", f"directory={new}")
    assert (code, new.exists()) == (2, False)
    assert "holds other data than the texts by user" in err
    torn = tmp_path / "torn.gz"
    damaged = gzip.compress(bytes(range(256)) * 9, mtime=0)
    for content in (b"none", damaged[:50], damaged[:10] + b"\xff" * 99):
        torn.write_bytes(content)
        code, _, err = called(capsys, f"name={NAME}", f"data={torn}", f"directory={new}")
        assert (code, new.exists()) == (2, False)
        assert f"{torn} cannot be read" in err
    code, _, err = called(capsys, f"name={NAME}", "size=huge", f"directory={new}")
    assert code == 2
    assert "size is 'huge'; it must be one of small, laptop, paper." in err


def test_another_size_has_a_page_of_its_own(tmp_path):
    sgmf_text.reproduce(tmp_path, Means(compute=False))
    before = (tmp_path / f"{NAME}.md").read_bytes()
    sgmf_text.reproduce(tmp_path, Means(size="laptop", compute=False))
    assert (tmp_path / f"{NAME}.md").read_bytes() == before
    assert "No run has ended yet." in (tmp_path / f"{NAME}_laptop.md").read_text()


def test_the_paper_size_is_built_and_accounted_and_trains_nothing(tmp_path, monkeypatch):
    size = replace(SIZES["paper"], keep_probabilities={NAME: (0.01,)}, epsilons=(8.0,))
    monkeypatch.setitem(SIZES, "paper", size)
    found = sgmf_text.reproduce(tmp_path, Means(size="paper"))
    rows = {row[0]: row for row in found.rows}
    assert set(rows) == set(sgmf_text.PAGE.mechanisms)
    assert rows[EPOCH][3] == pytest.approx(rows[WHOLE_RUN][3], rel=1e-6)
    assert rows[EPOCH][3] > 0
    assert rows[EPOCH][5] == pytest.approx(0.01 * 4 * 2**22)
    runs = 4 * (10 + 4)
    assert any(f"{runs:,} runs" in note and f"{runs * 200:,} rounds" in note for note in found.notes)
    assert not list(tmp_path.iterdir())
    assert math.isclose(len(sgmf_text_paper.blank(size).clients), 342_477 * 0.95, abs_tol=1)


def test_every_run_of_the_texts_has_the_delta_that_the_page_states():
    for size in SIZES.values():
        of_cell = [one for one in size.task.overrides if one.startswith("privacy.delta=")]
        assert of_cell == ["privacy.delta=1e-5"]
        assert "\ndelta 1e-5;" in sgmf_text_words.tuning(size)
