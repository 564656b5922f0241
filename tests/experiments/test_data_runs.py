"""Whole runs on data of one's own: text, dealt-out arrays and made-up points go the same way as digits."""

import json
from pathlib import Path

import numpy as np

from runs import run, summary

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
    settings = [
        "dataset=by_user_text",
        f"dataset.path={data}",
        "model=lstm",
        "model.embedding=2",
        "model.hidden=2",
    ]
    directory = run(tmp_path / "run", *SMALL, *settings)
    assert "an uncovered release" in (directory / "privacy.json").read_text()
    assert "an uncovered release" in (directory / "report.html").read_text()


def test_made_up_points_can_be_learnt(tmp_path: Path) -> None:
    settings = [
        "dataset=synthetic",
        "dataset.clients=100",
        "client.learning_rate=0.1",
        "optimizer.learning_rate=1",
    ]
    directory = run(tmp_path / "run", *SMALL, *LEARNS, *settings)
    assert summary(directory)["accuracy"] > 0.4  # one in ten by chance


def test_dealt_out_arrays_run_and_say_that_their_clients_are_made_up(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=rng.random((200, 4)), y=rng.integers(0, 3, 200))
    settings = ["dataset=partitioned", f"dataset.path={tmp_path / 'data.npz'}", "dataset.clients=30"]
    directory = run(tmp_path / "run", *SMALL, *settings, "dataset.partitioner=dirichlet")
    assert "made-up client (dirichlet partition)" in (directory / "privacy.json").read_text()
