"""Whole runs with each server optimizer: cut short anywhere they go on bit for bit, replay included."""

import json
import sys

import numpy as np
import pytest

from crashes import behind_round
from experiments.cli.command import guard
from experiments.session.python_api import run as door
from fedmf.errors import SettingError
from runs import metrics, model, run, summary
from server.checked import rehearse
from server.checkpoint import Checkpoint

pytestmark = pytest.mark.long

SMALL = (
    "population.cohort_size=6", "population.rounds_per_epoch=3", "population.epochs=2", "run.reproducible=true",
    "run.checkpoint_every=2",
)  # fmt: skip
MINE = """
import numpy as np
from server import Optimizer

class Mine(Optimizer):
    momentum = 0.5

    def __init__(self, rate):
        self.rate = np.float32(rate)

    def first(self, model):
        return {"velocity": np.zeros_like(model), "rounds": np.array(0)}

    def step(self, model, slots, mean, *, progress=0.0):
        velocity = np.float32(0.5) * slots["velocity"] + mean
        return model + FACTOR * self.rate * velocity, {"velocity": velocity, "rounds": slots["rounds"] + 1}
"""


def write(folder, name, factor="1", more=""):
    (folder / f"{name}.py").write_text(MINE.replace("FACTOR", factor) + more)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of one's own: its name, and where it lies."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine_of_the_run_tests", raising=False)
    write(tmp_path, "mine_of_the_run_tests")
    return "mine_of_the_run_tests"


CHOICES = {
    "nesterov": ("optimizer.nesterov=true", "optimizer.weight_decay=0.01"),
    "adam": ("optimizer=adam", "optimizer.weight_decay=0.01"),
    "yogi": ("optimizer=yogi",),
    "adagrad": ("optimizer=adagrad", "optimizer.precondition=true"),
    "preconditioned adam": ("optimizer=adam", "optimizer.precondition=true"),
    "custom": ("optimizer=custom", "optimizer.name=mine_of_the_run_tests:Mine", "optimizer.settings={rate: 0.1}"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHOICES)
def test_a_run_killed_again_and_again_goes_on_bit_for_bit_with_every_optimizer(tmp_path, own, name):
    straight = run(tmp_path / "straight", *SMALL, *CHOICES[name])
    for round_number in (1, 5):  # on the first state, and after a base in the second epoch
        with behind_round(
            Checkpoint, "commit", round_number
        ):  # only a replay tells what the optimizer made of it
            run(tmp_path / "r", *SMALL, *CHOICES[name], "run.resume=true")
    run(tmp_path / "r", *SMALL, *CHOICES[name], "run.resume=true")
    np.testing.assert_array_equal(model(tmp_path / "r"), model(straight))
    assert metrics(tmp_path / "r") == metrics(straight)
    assert summary(straight)["rounds"] == 6


def test_a_custom_optimizer_that_is_sgd_makes_the_model_of_sgd(tmp_path, own):
    """End to end: imported, given its settings, stepped, its momentum in the noise."""
    mine = run(tmp_path / "mine", *SMALL, *CHOICES["custom"])
    sgd = run(tmp_path / "sgd", *SMALL, "optimizer.learning_rate=0.1", "optimizer.momentum=0.5")
    np.testing.assert_allclose(model(mine), model(sgd), rtol=1e-5, atol=1e-6)
    for file in ("privacy.json", "mechanism.json"):
        assert json.loads((mine / file).read_text()) == json.loads((sgd / file).read_text())


def test_an_optimizer_of_ones_own_is_rehearsed_once_in_a_run(tmp_path, monkeypatch, own):
    seen = []

    def counting(optimizer, start):
        seen.append(rehearse(optimizer, start))
        return seen[-1]

    monkeypatch.setattr("experiments.settings.experiment.rehearse", counting)
    run(tmp_path / "r", *SMALL, *CHOICES["custom"])
    assert len(seen) == 1
    (base,) = sorted((tmp_path / "r/checkpoint").glob("base-*.npz"))[-1:]
    with np.load(base) as stored:
        configuration = json.loads(str(stored["about"]))["configuration"]
    assert configuration["what optimizer.name does"] == seen[0]


def cut_short(directory, *overrides):
    """Leave a run that was killed after some rounds, in mid-epoch."""
    with behind_round(Checkpoint, "commit", 5):
        run(directory, *SMALL, *overrides)
    assert metrics(directory)


def files(directory):
    return {
        path: path.read_bytes() for path in directory.rglob("*") if path.is_file() and path.name != "lock"
    }


@pytest.mark.parametrize(
    ("factor", "more"),
    [("1.5", ""), ("1", "        # as it was\n\nOTHER = 3\n")],
)
def test_a_resume_under_other_code_of_the_same_name_is_refused(
    tmp_path, monkeypatch, own, capsys, factor, more
):
    cut_short(tmp_path / "r", *CHOICES["custom"])
    before = files(tmp_path / "r")
    write(tmp_path, own, factor, more)
    monkeypatch.delitem(sys.modules, own)
    code = guard(lambda: run(tmp_path / "r", *SMALL, *CHOICES["custom"], "run.resume=true"))
    if factor == "1":  # nothing but its text is another
        assert code in (None, 0)
        return
    assert code == 2
    assert "what optimizer.name does is" in capsys.readouterr().err
    assert files(tmp_path / "r") == before


def test_a_base_with_the_state_of_another_optimizer_is_refused(tmp_path, capsys):
    """Whatever wrote it: names and shapes are looked at before a round is replayed on it."""
    cut_short(tmp_path / "r", "optimizer=adam")
    for base in sorted((tmp_path / "r/checkpoint").glob("base-*.npz"))[-1:]:
        with np.load(base) as stored:
            arrays = {name: stored[name] for name in stored.files}
        arrays["slot_v"] = arrays["slot_v"][:-1]
        np.savez(base, **arrays)
    before = files(tmp_path / "r")
    assert guard(lambda: run(tmp_path / "r", *SMALL, "optimizer=adam", "run.resume=true")) == 2
    said = capsys.readouterr().err
    assert "keeps {'m': 'float32 [650]', 'v': 'float32 [649]'}, but this one keeps" in said
    assert files(tmp_path / "r") == before


def test_code_that_a_run_directory_names_as_its_optimizer_is_not_imported(tmp_path, monkeypatch, own):
    cut_short(tmp_path / "r", *CHOICES["custom"])
    monkeypatch.delitem(sys.modules, own)
    with pytest.raises(SettingError, match=r"optimizer\.name of .* is 'mine_of_the_run_tests:Mine'"):
        door.resume(tmp_path / "r")
    assert own not in sys.modules
    door.resume(tmp_path / "r", trust_code=True)
    assert own in sys.modules


def test_an_optimizer_that_exits_in_a_later_round_stops_the_run_with_a_word(tmp_path, own, capsys):
    """An exit with code 0 would look like the end of the run."""
    write(
        tmp_path,
        own,
        more="""
class Leaving(Mine):
    def step(self, model, slots, mean, *, progress=0.0):
        if slots["rounds"] == 4:
            raise SystemExit(0)
        return super().step(model, slots, mean)
""",
    )
    leaving = ("optimizer=custom", f"optimizer.name={own}:Leaving", "optimizer.settings={rate: 0.1}")
    assert guard(lambda: run(tmp_path / "r", *SMALL, *leaving)) == 1
    assert f"step of {own}:Leaving raised SystemExit: 0" in capsys.readouterr().err
    assert len(metrics(tmp_path / "r")) == 4


def test_the_scale_is_counted_in_what_goes_down_to_the_clients(tmp_path):
    rows = metrics(run(tmp_path / "r", *SMALL, "optimizer=adam", "optimizer.precondition=true"))
    plain = metrics(run(tmp_path / "plain", *SMALL, "optimizer=adam"))
    more = [row["downlink_bytes"] - other["downlink_bytes"] for row, other in zip(rows, plain, strict=True)]
    assert more == [0, 0, 0] + 3 * [6 * 4 * 650]


def test_a_state_that_overflows_ends_the_run_though_the_model_is_finite(tmp_path, capsys):
    """v = infinity would stop every later step without a word."""
    diverging = ("privacy.epsilon=null", "privacy.noise_multiplier=1e30", "optimizer=adagrad")
    assert guard(lambda: run(tmp_path / "r", *SMALL, *diverging)) == 2
    assert "the state of the optimizer is no longer finite after round 1" in capsys.readouterr().err
    assert not list((tmp_path / "r").rglob("secrets*"))
    assert guard(lambda: run(tmp_path / "r", *SMALL, *diverging, "run.resume=true")) == 2
    assert "no longer finite after round 1" in capsys.readouterr().err
