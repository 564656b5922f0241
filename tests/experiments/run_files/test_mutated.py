"""Whatever a file of a run directory holds, each command that reads it ends with one sentence, or does what it does."""

import json
import random
import shutil

import numpy as np
import pytest
import yaml

from crashes import cut
from experiments import run as door
from experiments.cli.command import guard
from experiments.compare import CompareSettings, compare
from experiments.evaluate import EvaluateSettings, evaluate
from experiments.export import ExportSettings, export
from experiments.report import ReportSettings, report
from experiments.settings.compose import compose
from runs import SMALL, contents, run

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
    for number in range(8 if "resume" in READ_BY[name][:1] else 12):
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
