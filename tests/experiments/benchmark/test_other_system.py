"""The protocol with another system's process: its own CPU time and its children's, the same work as ours, its end."""

import sys
import time
from pathlib import Path

import pytest
import torch
from torch.nn.utils import parameters_to_vector

from client import models
from experiments.benchmark.other_system import SCRIPTS, OtherSystem, write_work
from experiments.benchmark.others import work
from experiments.benchmark.row import measure
from experiments.benchmark.simulation import SHAPE, Federation, simulation
from fedmf.errors import SettingError

pytestmark = pytest.mark.long

TINY = Federation("logistic", 3, cohort_size=4, examples=5)
BEGIN = f"""
import os, sys, time
sys.path.insert(0, {str(SCRIPTS)!r})
from turns import Turns
print("a library greets", flush=True)
main = os.getpid()
turns = Turns(2355)
def burn(seconds):
    begun = time.process_time()
    while time.process_time() < begun + seconds: pass
"""
# The grandchild outlives the child that made it and becomes ours, and ends before the turn does.
ORPHAN = """
def round():
    burn(0.1)
    if os.fork() == 0:
        if os.fork() == 0:
            burn(0.2)
        os._exit(0)
    os.wait()
    time.sleep(1.5)  # on a busy machine 0.2 s of its CPU time take as long
"""
WAITED = """
def round():
    if os.fork() == 0:
        burn(0.3)
        os._exit(0)
    os.wait()
"""
LIVING = """
if (child := os.fork()) == 0:
    while True: burn(0.1); time.sleep(0.1)
def round():
    time.sleep(0.5)
"""
PLAY = """
while turns(20): round()
"""


def process(script):
    return OtherSystem("pfl", [sys.executable, "-c", script], TINY)


@pytest.mark.parametrize(
    ("script", "least", "most"), [(ORPHAN, 0.25, 0.45), (WAITED, 0.25, 0.45), (LIVING, 0.05, 0.45)]
)
def test_a_turn_costs_the_cpu_time_of_the_process_and_of_all_below_it(script, least, most):
    """Children that ended, orphans and such as live on; sleeping costs nothing."""
    with process(BEGIN + script + PLAY) as other:
        assert least < other() < most
        assert least < other() < most


@pytest.fixture(scope="module")
def bare_script(tmp_path_factory):
    """Our own bare loop behind the protocol: the model and the cohort come from the folder of the work."""
    script = tmp_path_factory.mktemp("system") / "with_bare.py"
    script.write_text(
        f"""
import sys
sys.path.insert(0, {str(SCRIPTS)!r})
import torch
from turns import Turns
from work import read
torch.set_num_threads(1)
work = read(sys.argv[1])
turns, model = Turns(len(work.start)), work.model()
def play():
    trained = 0
    for x, y in zip(work.x, work.y):
        optimizer = torch.optim.SGD(model.parameters(), lr=work.settings["learning_rate"])
        for batch in torch.split(torch.randperm(len(x)), work.settings["batch_size"]):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
            trained += len(batch)
    return trained
while turns(play()): pass
"""
    )
    return script


def test_the_bare_loop_behind_the_protocol_costs_about_what_it_costs_here(bare_script):
    """The measurement, the turns and the work that is handed over: all that can be wrong beside the system itself.

    A busy machine moves single measurements: of five the one closest to 1 counts.
    """
    federation = Federation("logistic", 62, cohort_size=20)
    with OtherSystem("bare", [sys.executable, str(bare_script)], federation) as other:
        row = simulation(federation, None)
        ratios = (measure(row, 3, {"bare": other})["others"]["bare"]["ratio"] for _ in range(5))
        assert any(abs(ratio - 1) < 0.35 for ratio in ratios)


def test_the_work_handed_over_is_ours(tmp_path):
    """The same models as functions of the same vector, the same examples, the same settings."""
    for name, classes in (("logistic", 62), ("mlp", 10), ("cnn", 62)):
        federation = Federation(name, classes, cohort_size=2, examples=3)
        write_work(federation, tmp_path)
        given = work.read(tmp_path)
        ours, theirs = federation.build(), given.model()
        torch.testing.assert_close(theirs(given.x[1]), ours(given.x[1]))
        torch.testing.assert_close(parameters_to_vector(theirs.parameters()), given.start)
        assert [len(p) for p in theirs.parameters()] == [len(p) for p in ours.parameters()]
        for client, examples in enumerate(federation.cohort()):
            assert (given.x[client].numpy() == examples.x).all()
            assert (given.y[client].numpy() == examples.y).all()
    assert given.settings == {"model": "cnn", "classes": 62, "shape": list(SHAPE), "learning_rate": 0.1, "batch_size": 10,
                              "l2_norm": 0.1, "noise_multiplier": 1.0}  # fmt: skip
    assert set(models.MODELS) > {"logistic", "mlp", "cnn"}


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ("turns(19)", "19 examples in a round where ours has 20"),
        ("turns._parameters = 7; turns(20)", "7 parameters where ours has 2355"),
        ("raise ValueError('no such model')", "did not play a round: it ended. .*no such model"),
        ("os.fork(); turns._answers.flush(); time.sleep(100 * (os.getpid() != main))", "it ended"),
    ],
)
def test_a_system_that_does_other_work_or_none_is_refused(answers, message):
    begun = time.monotonic()
    with pytest.raises(SettingError, match=message):
        process(BEGIN + answers)
    assert time.monotonic() - begun < 60  # a child that lives on for 100 s is not waited for


def test_a_system_that_ends_in_a_turn_is_refused():
    ended = process(BEGIN + "turns(20); print('out of memory', file=sys.stderr)")
    with (
        pytest.raises(SettingError, match=r"did not play a round: it ended\. .*out of memory"),
        ended as other,
    ):
        other()


def test_a_child_that_outlives_its_process_is_ended_too(tmp_path):
    child = tmp_path / "child"
    living = f"""
if (child := os.fork()) == 0:
    while True: time.sleep(0.1)
open({str(child)!r}, "w").write(str(child))
def round(): pass
"""
    with process(BEGIN + living + PLAY) as other:
        other()
        number = int(child.read_text())
        assert _is_running(number)
    assert _ends(number)


def test_the_process_and_its_children_are_gone_afterwards(tmp_path):
    child = tmp_path / "child"
    stubborn = f"""
if os.fork() == 0:
    with open({str(child)!r}, "w") as file: file.write(str(os.getpid()))
    time.sleep(100)
while not (os.path.exists({str(child)!r}) and os.path.getsize({str(child)!r})): time.sleep(0.01)
turns(20)
time.sleep(100)
"""
    with pytest.raises(ZeroDivisionError), process(BEGIN + stubborn) as other:
        _ = 1 / 0
    assert other._process.returncode is not None
    assert _ends(int(child.read_text()))


def _ends(number):
    """Whether a process that was killed is gone soon."""
    deadline = time.monotonic() + 20
    while _is_running(number) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not _is_running(number)


def _is_running(number):
    """Whether a process runs; one that has ended may wait as a zombie for a parent that looks."""
    status = Path(f"/proc/{number}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"
