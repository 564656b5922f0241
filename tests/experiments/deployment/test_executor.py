"""A process that forks for each task: what its children share, how they end, and that none is left."""

import gc
import os
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from experiments.deployment import executor
from experiments.deployment.executor import (
    CODE_CHANGED,
    Executor,
    shared_generators,
    warn_of_shared_generators,
)

# The process of the tests has threads where it is a worker of pytest-xdist; an executor has none.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")

ROOT = Path(__file__).resolve().parents[3]
LIMIT = 8


@pytest.fixture(autouse=True)
def unfrozen():
    yield
    gc.unfreeze()


class Work:
    """An executor over the tasks "0", "1", ..., each played by `play`; `told` is what the children said."""

    def __init__(self, play, tasks=3, **more):
        self.left, self.told, self.paused = [str(number) for number in range(tasks)], [], []
        self.executor = Executor(
            self.acquire, play, self.told.append, self.paused.append, self.is_over, **more
        )

    def acquire(self):
        return self.left.pop(0) if self.left else None

    def is_over(self):
        return len(self.paused) > 0 and not self.paused[-1]  # it was asked in vain


def test_each_task_is_played_once_in_a_process_of_its_own():
    def play(token, tell):
        tell(f"{token} {os.getpid()}")
        return 0

    work = Work(play)
    assert work.executor.run() is True
    tokens, pids = zip(*(text.split() for text in work.told), strict=True)
    assert tokens == ("0", "1", "2")
    assert len({*pids, str(os.getpid())}) == 4
    assert work.paused == [True, True, True, False]


@pytest.mark.parametrize("seeded", [False, True], ids=["unseeded", "seeded parent"])
def test_no_two_children_draw_the_same_from_any_global_generator(seeded):
    def play(token, tell):
        of_numpy = np.random.random()  # noqa: NPY002  the global one, which a loader of one's own may use
        drawn = random.random(), of_numpy, float(torch.rand(1, dtype=torch.float64))
        tell(" ".join(map(str, drawn)))
        return 0

    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        if seeded:  # what a loader of one's own may have done in the parent
            random.seed(0), np.random.seed(0), torch.manual_seed(0)  # noqa: NPY002
        work = Work(play, 4)
        work.executor.run()
    finally:
        random.setstate(states[0]), np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])
    for drawn in zip(*(text.split() for text in work.told), strict=True):
        assert len(set(drawn)) == 4


def test_what_a_child_changes_its_siblings_do_not_see():
    shared = [0]

    def play(token, tell):
        shared[0] += 1
        tell(str(shared[0]))
        return 0

    work = Work(play)
    work.executor.run()
    assert work.told == ["1", "1", "1"]
    assert shared == [0]


def test_a_child_that_dies_costs_its_own_task_only(caplog):
    def play(token, tell):
        if token == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        tell(token)
        return 0

    work = Work(play)
    assert work.executor.run() is True
    assert work.told == ["0", "", "2"]
    assert "killed by SIGKILL" in caplog.text


def test_what_a_child_raises_ends_the_child_alone():
    def play(token, tell):
        if token == "0":
            raise ValueError("no such task")
        tell(token)
        return 0

    work = Work(play)
    assert work.executor.run() is True
    assert work.told == ["", "1", "2"]


def test_changed_code_ends_the_executor_so_that_it_starts_anew():
    work = Work(lambda token, tell: CODE_CHANGED if token == "1" else 0)
    assert work.executor.run() is False
    assert work.left == ["2"]


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(executor, "_ASK", 0.02)
    monkeypatch.setattr(executor, "_LEAVING", 0.1)


@pytest.mark.parametrize("hangs", ["stopped", "asleep"])
def test_a_child_that_hangs_is_ended_when_nobody_waits_for_it_and_the_next_task_is_played(
    impatient, caplog, hangs
):
    def play(token, tell):
        tell(f"{token} {os.getpid()}")
        if token == "1":
            os.kill(os.getpid(), signal.SIGSTOP) if hangs == "stopped" else time.sleep(600)
        return 0

    asked = []

    def in_vain(token, told, seconds):
        if token != "1":
            return ""
        asked.append((told, seconds))
        return "it is given up" if len(asked) > 3 else ""

    work = Work(play, in_vain=in_vain)
    assert work.executor.run() is True
    assert [text.split()[0] for text in work.told] == ["0", "1", "2"]
    assert asked[-1][0] == work.told[1]
    seconds = [seconds for _, seconds in asked]
    assert seconds == sorted(seconds)
    wait_until_gone([int(work.told[1].split()[1])])
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "a task's process is ended, after" in said
    assert said.endswith(": it is given up")


def test_long_training_that_somebody_waits_for_is_left_alone(impatient):
    asked = []

    def play(token, tell):
        time.sleep(0.5)
        tell(token)
        return 0

    work = Work(play, 1, in_vain=lambda *given: asked.append(given) or "")
    work.executor.run()
    assert work.told == ["0"]
    assert len(asked) > 3


def test_a_child_that_has_sent_its_answer_and_is_about_to_end_is_left_to_it(monkeypatch, caplog):
    monkeypatch.setattr(executor, "_ASK", 0.02)

    def play(token, tell):
        time.sleep(0.3)
        tell(token)
        return 0

    work = Work(play, 1, in_vain=lambda *given: "its token is no longer known")
    work.executor.run()
    assert work.told == ["0"]
    assert caplog.records == []


def test_who_is_waited_for_again_is_not_ended(monkeypatch):
    """One answer of a SuperNode that is starting again, say, is not the last word."""
    monkeypatch.setattr(executor, "_ASK", 0.02)
    monkeypatch.setattr(executor, "_LEAVING", 0.05)
    asked = []

    def in_vain(*given):
        asked.append(given)
        return "not now" if len(asked) % 2 else ""

    def play(token, tell):
        time.sleep(0.5)
        tell(token)
        return 0

    work = Work(play, 1, in_vain=in_vain)
    work.executor.run()
    assert work.told == ["0"]
    assert len(asked) > 4


def test_a_text_too_long_for_the_pipe_is_left_out_and_blocks_nobody():
    def play(token, tell):
        tell("x" * (1 << 17) if token == "0" else token)
        return 0

    work = Work(play, 2)
    work.executor.run()
    assert work.told == ["", "1"]


def test_what_a_child_leaves_behind_is_ended_with_it():
    def play(token, tell):
        left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        tell(str(left.pid))
        return 0

    work = Work(play, 1)
    work.executor.run()
    wait_until_gone([int(work.told[0])])


@pytest.mark.parametrize("tells", [True, False])
def test_a_process_that_leaves_the_group_and_keeps_the_pipe_blocks_nobody(tells):
    def play(token, tell):
        left = os.fork()
        if left == 0:
            os.setsid()
            time.sleep(60)
            os._exit(0)
        while os.getsid(left) != left:  # from then on the end of the child's group does not reach it
            time.sleep(0.01)
        tell(str(left) if tells else "")
        ids.write_text(str(left))
        return 0

    with tempfile.TemporaryDirectory() as folder:
        ids = Path(folder) / "pid"
        work, began = Work(play, 1), time.monotonic()
        signal.signal(
            signal.SIGALRM, lambda *_: pytest.fail("the executor waits for a process that is not its own")
        )
        signal.alarm(LIMIT)
        try:
            work.executor.run()
        finally:
            signal.alarm(0)
            left = int(ids.read_text())
            os.kill(left, signal.SIGKILL)
    assert time.monotonic() < began + LIMIT
    assert work.told == [str(left) if tells else ""]


@pytest.mark.parametrize(
    ("end", "how"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "was killed by SIGKILL"),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), "was killed by SIGTERM"),
        (lambda: os._exit(3), "ended with exit code 3"),
    ],
)
def test_a_look_that_does_not_come_back_is_no_success_and_the_log_says_why(caplog, end, how):
    assert executor.succeeds(lambda: True, "a look at the data")
    assert not executor.succeeds(lambda: False, "a look at the data")
    assert caplog.records == []
    assert not executor.succeeds(end, "a look at the data")
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith(f"a look at the data: the process that did it {how}")


def test_generators_that_every_child_would_share_are_found_and_said_once(caplog, monkeypatch):
    before = shared_generators()
    module = ModuleType("loader_of_ones_own")
    module.rng = np.random.default_rng()
    module.draws, module.old, module.tensor_draws = (
        random.Random(),
        np.random.RandomState(),
        torch.Generator(),
    )
    module.of_the_system, module.of_torch = random.SystemRandom(), torch.default_generator
    monkeypatch.setitem(sys.modules, module.__name__, module)
    names = [f"{module.__name__}.{name}" for name in ("draws", "old", "rng", "tensor_draws")]
    assert sorted({*shared_generators()} - {*before}) == names
    known = {*before}
    warn_of_shared_generators(known)
    warn_of_shared_generators(known)
    said = [record.getMessage() for record in caplog.records if "generator" in record.getMessage()]
    assert [text.partition(" is a generator")[0] for text in said] == names


def test_what_an_executor_imports_by_itself_shares_no_generator():
    program = (
        "import experiments, torch\n"
        "from experiments.deployment.resident import Resident\n"
        "import experiments.deployment.flower_tasks\n"
        "from experiments.deployment.executor import shared_generators\n"
        "Resident('clients=2 dataset=digits')\n"
        "print(shared_generators())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


SCRIPT = """
    import os, signal, sys, time
    from experiments.deployment.executor import Executor
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    def play(token, tell):
        print(os.getpid(), flush=True)
        while True: pass
    began = time.monotonic()
    is_over = (lambda: time.monotonic() > began + 1) if sys.argv[1] == "starter" else (lambda: False)
    Executor(lambda: "task", play, print, print, is_over).run()
"""


@pytest.mark.parametrize("ended_by", [signal.SIGKILL, signal.SIGTERM, "starter"])
def test_a_child_at_work_ends_with_the_executor(ended_by):
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(ended_by)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process.stdout as said:
        child = int(said.readline())
    assert is_running(child)
    if ended_by != "starter":
        process.send_signal(ended_by)
    process.wait(LIMIT)
    wait_until_gone([child])


def wait_until_gone(pids):
    deadline = time.monotonic() + LIMIT
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
