"""`runs`: what is below folders, in which state and order, which of it is meant; attendance.json: which nodes each epoch began with."""

import json
from functools import partial

import pytest

import written_run
from experiments.deployment.loopback import make_node_key
from experiments.run_files.directory import ATTENDANCE, read_attendance, record_attendance
from experiments.run_files.listing import as_lists
from experiments.runs import RunsSettings, runs
from experiments.settings.compose import compose
from fedmf.errors import RunDirectoryError, SettingError
from server.cohort import Roster
from server.files import locked
from server.known_nodes import EVERY_NODE, KnownNode, KnownNodes


@pytest.fixture
def listed(tmp_path, monkeypatch, capsys):
    """A function that lists runs below the current directory and returns what it prints: JSON unless told otherwise."""
    monkeypatch.chdir(tmp_path)
    for number, (name, model) in enumerate(
        {"good": "mlp", "cut": "cnn", "live": "cnn", "bad": "cnn"}.items()
    ):
        data = {"name": "by_user_csv", "path": f"/home/ann/visits{number}.csv"}
        config = {"model": {"name": model}, "dataset": data, "seed": number}
        changes = {} if name == "good" else {"summary": None}
        written_run.write(
            tmp_path / "runs" / name, config=config, mechanism={"epochs": 2, "rounds_per_epoch": 5}, **changes
        )
    (tmp_path / "runs" / "good" / "provenance.json").write_text(
        '{"sessions": [{"started": "2026-01-31T12:00:00Z"}]}'
    )
    with (tmp_path / "runs" / "cut" / "metrics.jsonl").open("a") as file:
        file.write('{"round": 7, "acc')  # a torn line
    (tmp_path / "runs" / "bad" / "config.yaml").write_text("model: [")
    (tmp_path / "runs" / "live" / "checkpoint").mkdir()

    def outputs(*arguments, form="json"):
        runs(compose("runs", as_lists([f"output={form}", *arguments]), RunsSettings))
        printed = capsys.readouterr().out
        return json.loads(printed) if form == "json" else printed

    (tmp_path / "runs" / "lost").mkdir()
    (tmp_path / "runs" / "lost" / "config.yaml").symlink_to("/proc/self/mem")  # which the system cannot read

    with locked(tmp_path / "runs" / "live" / "checkpoint" / "lock"):
        yield outputs


def test_runs_are_listed_with_what_they_are_and_how_far_they_are(listed):
    states = {row["name"]: row["state"] for row in listed()}
    assert states == {
        "good": "finished",
        "cut": "interrupted at round 6/10",
        "live": "running at round 6/10",
        "bad": "unreadable",
        "lost": "unreadable",
    }
    assert listed("where=state=finished") == [
        {"name": "good", "when": "2026-01-31T12:00:00Z", "data": "by_user_csv visits0.csv", "model": "mlp",
         "epsilon": 8.0, "accuracy": 0.935, "state": "finished"}
    ]  # fmt: skip
    assert "93.5 %" in listed(form="text")


def names(rows):
    return [row["name"] for row in rows]


def test_conditions_and_order(listed):
    assert names(listed("where=model=cnn", "sort=seed")) == ["live", "cut"]
    assert names(listed("where=seed<2,epsilon>7.5", "where=data=by_user_csv", "sort=-seed")) == [
        "good",
        "cut",
    ]
    assert names(listed("runs", "runs/good", "where=dataset.path=/home/ann/visits0.csv")) == ["runs/good"]
    for wrong, error, said in (
        ("where=colour=red", SettingError, "^where names colour, which no run has"),
        ("where=model!cnn", SettingError, "^where is 'model!cnn'; it must be KEY=VALUE"),
        ("sort=colour", SettingError, "^sort names colour"),
        ("nowhere", RunDirectoryError, "^directory is nowhere, which is no folder"),
    ):
        with pytest.raises(error, match=said):
            listed(wrong)


# attendance.json


STRANGER = "0" * 32


def test_each_epoch_names_its_nodes_once_a_damaged_file_is_put_aside_and_stops_no_run(tmp_path, caplog):
    listed = KnownNode("hospital-1", make_node_key(tmp_path, "a").read_text(), 9)
    record = partial(record_attendance, tmp_path, KnownNodes((listed,)))

    def attended():
        return [(row["epoch"], row["nodes"]) for row in read_attendance(tmp_path)]

    record(Roster(0, {listed.key: 5, STRANGER: 2}))
    for others in ({}, {STRANGER: 6}):  # an epoch whose roster was lost before anyone was asked, then resumed
        record(Roster(1, {listed.key: 8, STRANGER: 8}))
        record(Roster(1, {listed.key: 7, **others}))
        assert attended() == [(1, {"hospital-1": 5, STRANGER: 2}), (2, {"hospital-1": 7, **others})]
    # Its key was taken out of the list since.
    record_attendance(tmp_path, EVERY_NODE, Roster(1, {listed.key: 7, STRANGER: 6}))
    assert attended()[1] == (2, {"hospital-1": 7, STRANGER: 6})
    (tmp_path / ATTENDANCE).write_text("{")
    record(Roster(3, {listed.key: 8}))
    assert attended() == [(4, {"hospital-1": 8})]
    assert (tmp_path / f"{ATTENDANCE}.damaged").read_text() == "{"
    assert "attendance.json is not JSON" in caplog.text
