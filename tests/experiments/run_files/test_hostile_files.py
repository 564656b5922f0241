"""What is read of run directories: whatever a file holds, a command ends with one sentence or works; how `runs` lists them; attendance."""

import json
import random
import shutil
from functools import partial

import numpy as np
import pytest
import yaml

import written_run
from experiments import run as door
from experiments.cli.command import guard
from experiments.compare import CompareSettings, compare
from experiments.deployment.loopback import make_node_key
from experiments.evaluate import EvaluateSettings, evaluate
from experiments.export import ExportSettings, export
from experiments.report import ReportSettings, report
from experiments.run_files.directory import ATTENDANCE, read_attendance, record_attendance
from experiments.run_files.listing import as_lists
from experiments.runs import RunsSettings, runs as list_runs
from experiments.settings.compose import compose
from fedmf.errors import RunDirectoryError, SettingError
from runs import SMALL, contents, cut, run
from server.cohort import Roster
from server.files import locked
from server.known_nodes import EVERY_NODE, KnownNode, KnownNodes

SMALL = (*SMALL, "metrics=[f1]")
DEEP = "deep"  # stands for lists in one another
ODD = (None, [], {}, "x", "1", -1, 0, 1e308, 10**400, float("nan"), True, [[]], {"a": {"b": [1]}}, "\ud800", [1, "a"], DEEP)  # fmt: skip
READ_BY = {
    "config.yaml": ("report", "compare", "evaluate", "resume"),
    "metrics.jsonl": ("report", "compare", "resume", "extend"),
    "privacy.json": ("report", "export", "compare"),
    "summary.json": ("report", "compare", "export", "api", "extend"),
    "mechanism.json": ("report",),
    "provenance.json": ("report", "resume"),
    "model.npz": ("evaluate", "export"),
    "checkpoint/secrets.npz": ("resume",),
}
OPEN = ("resume",)  # go on with a run that was cut off


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A finished run, and one that was cut off in its second epoch."""
    folder = tmp_path_factory.mktemp("runs")
    return run(folder / "finished", *SMALL), cut(folder / "open", *SMALL)


def calls(directory):
    """Return what reads `directory`, by name; settings are composed as the command line would."""
    one, above = f"directory={directory}", f"directory={directory.parent}"
    return {
        "report": lambda: report(compose("report", [one], ReportSettings)),
        "compare": lambda: compare(compose("compare", [above, "output=json"], CompareSettings)),
        "evaluate": lambda: evaluate(compose("evaluate", [one, "output=json"], EvaluateSettings)),
        "export": lambda: export(compose("export", [one, "format=torch"], ExportSettings)),
        "api": lambda: [
            getattr(door.load(directory), name) for name in ("accuracy", "scores", "epsilon", "statement")
        ],
        "resume": lambda: door.resume(directory, accept_copy=True),
        "extend": lambda: door.extend(directory, 1, max_epsilon=100.0),
    }


def places(document, above=()):
    """Yield the place of every value of a document, as the keys that lead to it."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        yield (*above, key)
        if isinstance(value, dict | list) and len(above) < 2:
            yield from places(value, (*above, key))


def changed(document, choose):
    """Return a document with one value replaced, or taken out."""
    document = json.loads(json.dumps(document))
    *above, key = choose.choice(list(places(document)))
    place = document
    for each in above:
        place = place[each]
    if choose.random() < 0.2:
        del place[key]
    else:
        place[key] = choose.choice(ODD)
    return document


def dumped(document):
    return json.dumps(document).replace(f'"{DEEP}"', "[" * 30_000 + "]" * 30_000)


def mutate(file, choose):
    """Change a file as a slip, a disk or a stranger would."""
    data = file.read_bytes()
    kind = choose.random()
    if kind < 0.1:
        file.write_bytes(data[: choose.randrange(len(data))])
    elif kind < 0.2:
        place = choose.randrange(len(data))
        file.write_bytes(data[:place] + bytes([data[place] ^ 1 << choose.randrange(8)]) + data[place + 1 :])
    elif file.suffix == ".npz":
        with np.load(file) as stored:
            arrays = dict(stored)
        name = choose.choice(list(arrays))
        new = [np.zeros(()), np.zeros((2, 3)), np.array("x"), np.array(b"x"), arrays[name].astype("S3")]
        arrays[name] = choose.choice(new)
        if "about" in arrays and name == "about":
            arrays[name] = np.array(choose.choice(["[]", "3", '{"format": []}', "[" * 9999]))
        np.savez(file, **arrays)
    elif file.suffix == ".yaml":
        file.write_text(yaml.safe_dump(changed(yaml.safe_load(data), choose)))
    elif file.suffix == ".json":
        file.write_text(dumped(changed(json.loads(data), choose)))
    else:
        lines = data.decode().splitlines()
        place = choose.randrange(len(lines))
        lines[place] = dumped(changed(json.loads(lines[place]), choose))
        file.write_text("\n".join(choose.choice([lines, [*lines, lines[0]], lines[::-1]])) + "\n")


@pytest.mark.parametrize("name", READ_BY)
def test_a_mutated_file_is_read_or_refused_in_one_sentence_that_changes_nothing(runs, name, tmp_path, capsys):
    finished, cut_off = runs
    choose, codes = random.Random(name), []
    for number in range(6):
        command = READ_BY[name][number % len(READ_BY[name])]
        directory = tmp_path / str(number) / "r"
        shutil.copytree(cut_off if command in OPEN else finished, directory)
        mutate(directory / name, choose)
        before = contents(tmp_path)
        capsys.readouterr()
        codes.append(guard(calls(directory)[command]))
        said = capsys.readouterr().err
        if codes[-1]:
            _, _, sentence = said.rpartition("error: ")
            assert 20 < len(sentence) < 1000, sentence
        if codes[-1] == 2:
            assert contents(tmp_path) == before, (command, said)
    assert 2 in codes


VALUES = {
    "an argument that the data decide": ("model.settings", {"input_shape": [1]}, "contain input_shape, which follows"),
    "the same without settings": ("model.classes", 3, "contain classes, which follows"),
    "settings without texts as keys": ("model.settings", {3: 4}, "config.yaml"),
    "a model without a name": ("model.name", None, "names its model None"),
    "a number as a name": ("model.name", 7, "names its model 7"),
    "a list as a name": ("model.name", ["logistic"], "names its model"),
    "a list as a dataset": ("dataset.name", ["digits"], "names its dataset"),
    "a list as a path": ("dataset.path", [1], "it should be a valid string"),
    "a truth as a path": ("dataset.path", True, "dataset.path is true; it takes neither"),
    "text as a count": ("dataset.examples_per_client", "many", "it should be a valid integer"),
    "a relative module": ("dataset.name", ".:x", "'.:x', which "),
    "a module of no name": ("dataset.name", ":x", "':x', which "),
    "a number as a group": ("engine", 3, "engine, which must be a mapping"),
    "a list as a group": ("run", [1], "run, which must be a mapping"),
}  # fmt: skip
TEXTS = {
    "a reference to itself": ("model: {name: logistic}\ndataset: &a {name: digits, settings: *a}\n", "nests more"),
    "a list in itself": ("model: {name: logistic}\ndataset: {name: digits}\nmore: &a [*a]\n", "nests more"),
    "deep": (f"dataset: {'{a: ' * 3000}1{'}' * 3000}\nmodel: {{name: x}}\n", "cannot be read as YAML"),
    "less deep": (f"dataset: {{name: digits, a: {'[' * 50}{']' * 50}}}\nmodel: {{name: x}}\n", "nests more"),
    "a date": ("dataset: {name: digits, path: 2020-01-01}\nmodel: {name: x}\n", "contains a date"),
    "a date of no calendar": ("dataset: {name: digits, path: 2020-13-01}\nmodel: {name: x}\n", "cannot be read"),
    "a huge document": (
        "dataset: {name: digits}\nmodel: {name: x}\nz0: &z0 [1, 2]\n"
        + "".join(f"z{i}: &z{i} [{', '.join([f'*z{i - 1}'] * 9)}]\n" for i in range(1, 9)),
        "contains more than",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", [*VALUES, *TEXTS])
def test_what_a_config_holds_is_refused_with_one_sentence_and_exit_code_2(runs, tmp_path, capsys, case):
    directory = shutil.copytree(runs[1], tmp_path / "r")
    text, named = (directory / "config.yaml").read_text(), {**VALUES, **TEXTS}[case][-1]
    if case in VALUES:
        (path, value, _), document = VALUES[case], yaml.safe_load(text)
        group, _, key = path.rpartition(".")
        (document[group] if group else document)[key] = value
    (directory / "config.yaml").write_text(yaml.safe_dump(document) if case in VALUES else TEXTS[case][0])
    evaluating = compose("evaluate", [f"directory={directory}", "trust_code=true"], EvaluateSettings)
    for call, says in (
        (lambda: evaluate(evaluating), named),
        (lambda: door.resume(directory, trust_code=True), ""),
    ):
        capsys.readouterr()
        assert guard(call) == 2
        said = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("dataset ")]
        assert [line[:7] for line in said] == ["error: "]
        assert says in said[0], said


# how runs are listed


@pytest.fixture
def listed(tmp_path, monkeypatch, capsys):
    """A function that lists runs below the current directory and returns what it prints: JSON unless told otherwise."""
    monkeypatch.chdir(tmp_path)
    for number, (name, model) in enumerate(
        {"good": "mlp", "cut": "python-0123456789ab:cnn", "live": "cnn", "bad": "cnn"}.items()
    ):
        data = {"name": "by_user_csv", "path": f"/home/ann/visits{number}.csv"}
        config = {"model": {"name": model}, "dataset": data, "seed": number}
        changes = {} if name == "good" else {"summary": None}
        written_run.write(
            tmp_path / "runs" / name,
            config=config,
            mechanism={"epochs": 2, "rounds_per_epoch": 5},
            **changes,
        )
    (tmp_path / "runs" / "good" / "provenance.json").write_text(
        '{"sessions": [{"started": "2026-01-31T12:00:00Z"}]}'
    )
    with (tmp_path / "runs" / "cut" / "metrics.jsonl").open("a") as file:
        file.write('{"round": 7, "acc')  # a torn line
    (tmp_path / "runs" / "bad" / "config.yaml").write_text("model: [")
    (tmp_path / "runs" / "live" / "checkpoint").mkdir()

    def outputs(*arguments, form="json"):
        list_runs(compose("runs", as_lists([f"output={form}", *arguments]), RunsSettings))
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
    text = listed(form="text")
    assert "93.5 %" in text
    assert "2026-01-31 12:00 " in text


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
