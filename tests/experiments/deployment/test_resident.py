"""What an executor keeps between messages: data until their file changes, settings of the run that was played."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict

from experiments.deployment import apps, flower_tasks, resident
from experiments.deployment.executor_process import waiting
from experiments.deployment.node import Node, node_settings
from experiments.deployment.resident import Resident, stamp_of
from experiments.engines.grid import call_app, set_identity
from fedmf.updates import wire

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]


def write(file, value, users=4):
    x = np.full((users, 3), value, np.float32)
    split = np.zeros(users, np.int64)
    split[-1] = 1
    np.savez(file, x=x, y=np.arange(users) % 2, user=np.arange(users), split=split)


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "people.npz"
    write(file, 1.0)
    return file


def overrides_of(file):
    return f"clients=3 dataset=by_user_npz dataset.path={file} dataset.classes=2"


def values(node):
    return {float(node.examples_of(f":{number}").x.max()) for number in range(3)}


def test_data_are_read_once_and_shared_by_all_messages(file):
    overrides = overrides_of(file)
    kept = Resident(overrides)
    first, second = kept.node(overrides), kept.node(overrides)
    assert first is second
    assert first.dataset is second.dataset
    kept.refresh()
    assert kept.node(overrides) is first


@pytest.mark.parametrize("replaced", [True, False], ids=["replaced", "in place"])
def test_a_changed_file_is_seen_by_the_next_message_and_kept_from_then_on(file, tmp_path, replaced):
    overrides = overrides_of(file)
    kept = Resident(overrides)
    assert values(kept.node(overrides)) == {1.0}
    write(tmp_path / "other.npz" if replaced else file, 2.0)  # of the same size
    if replaced:
        os.replace(tmp_path / "other.npz", file)
    of_message = kept.node(overrides)  # what a child sees that was forked before `refresh`
    assert values(of_message) == {2.0}
    kept.refresh()
    assert kept.node(overrides) is kept.node(overrides)
    assert values(kept.node(overrides)) == {2.0}


def test_a_file_with_the_same_time_and_size_is_seen_too(file, tmp_path):
    overrides = overrides_of(file)
    kept = Resident(overrides)
    times = file.stat()
    write(file, 2.0)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert file.stat().st_size == times.st_size
    assert values(kept.node(overrides)) == {2.0}


def test_a_file_that_is_not_there_yet_is_read_once_it_is(file, caplog):
    overrides = overrides_of(file)
    content = file.read_bytes()
    file.write_bytes(b"not yet")
    kept = Resident(overrides)
    assert "cannot be loaded" in caplog.text
    assert kept.node(overrides).clients == 3  # it declares them all the same
    file.write_bytes(content)
    assert values(kept.node(overrides)) == {1.0}


def test_a_file_that_is_gone_is_not_answered_for_from_memory(file):
    overrides = overrides_of(file)
    kept = Resident(overrides)
    file.unlink()
    with pytest.raises(Exception, match="does not exist"):
        kept.node(overrides).examples_of(":0")


@pytest.mark.parametrize(
    "overrides",
    [
        "clients=1 dataset=by_user_npz dataset.path={folder}",
        "clients=1 dataset=custom dataset.name=mine:load dataset.path={file}",
        "clients=1 dataset=femnist",
        "clients=1 dataset=by_user_csv dataset.path={file} dataset.user=u dataset.label=l",
        "clients=1 dataset=partitioned dataset.path={file}",
    ],
)
def test_what_is_read_from_elsewhere_is_read_for_every_message(overrides, file, tmp_path):
    settings = node_settings(overrides.format(file=file, folder=tmp_path))
    assert stamp_of(Node.of(settings).arguments) is None


def test_settings_of_the_run_that_was_played_are_composed_once(file, monkeypatch):
    kept = Resident(overrides_of(file))
    kept.learn_run("seed=3")
    known = kept.run("seed=3")
    monkeypatch.setattr(resident, "run_settings", lambda text: pytest.fail(f"composed {text}"))
    kept.learn_run("seed=3")
    assert kept.run("seed=3") is known
    assert known.seed == 3


def test_another_run_and_one_with_a_mistake_are_answered_as_they_are(file):
    kept = Resident(overrides_of(file))
    kept.learn_run("seed=3")
    assert kept.run("seed=4").seed == 4
    kept.learn_run("seeed=5")
    with pytest.raises(Exception, match="seeed"):
        kept.run("seeed=5")


def reply(app, kind, content, run, node):
    set_identity()
    context = Context(1, 1, {"overrides": node}, RecordDict(), {"overrides": run})
    message = Message(content, dst_node_id=1, message_type=kind)
    message.metadata.__dict__["_message_id"] = "1"
    return call_app(app, message, context)


def test_the_app_answers_a_query_as_the_one_that_reads_all_anew(file):
    overrides = overrides_of(file)
    question = RecordDict({wire.HELD: ConfigRecord({wire.DIGEST_KEY: bytes(range(32))})})
    answers = [
        dict(reply(app, MessageType.QUERY, question, "", overrides).content.config_records[wire.HELD])
        for app in (apps.client_app, Resident(overrides).app())
    ]
    assert answers[1].pop(wire.READY) is True  # nobody looked where a process is started for each message
    assert answers[0] == answers[1]
    assert answers[0][wire.CLIENTS] == 3
    assert len(answers[0][wire.DIGEST]) == 64


PRELOADED = """
    import logging, sys, threading
    from pathlib import Path
    import experiments
    import torch
    torch.set_num_threads(1)
    from experiments.deployment import executor_process, flower_tasks
    from experiments.deployment.executor import Executor
    from experiments.deployment.resident import Resident
    flower_tasks.TaskSource("127.0.0.1:9", b"x").acquire()
    for overrides in sys.argv[1:]:
        kept = Resident(overrides)
        assert kept._stamp is not None, overrides
        assert len(list(Path("/proc/self/task").iterdir())) == 1, overrides
    assert threading.active_count() == 1
    assert not torch.cuda.is_initialized()
"""


def test_the_process_that_forks_has_one_thread_and_no_device_whatever_it_keeps(file, tmp_path):
    texts = tmp_path / "texts.jsonl"
    texts.write_text(
        "".join(
            f'{{"user": "{user}", "text": "a b c d e f g h i j"}}\n' for user in range(6) for _ in range(5)
        )
    )
    done = subprocess.run(
        [
            *(sys.executable, "-c", textwrap.dedent(PRELOADED)),
            overrides_of(file),
            "clients=3 dataset=digits",
            "clients=3 dataset=synthetic",
            f"clients=3 dataset=by_user_text dataset.path={texts} model=lstm dataset.vocabulary_size=5",
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def said_ready(kept, overrides):
    """What the node of `kept` answers to the question of an epoch about its being ready."""
    question = RecordDict({wire.HELD: ConfigRecord({wire.DIGEST_KEY: bytes(range(32))})})
    answer = reply(kept.app(), MessageType.QUERY, question, "", overrides).content.config_records[wire.HELD]
    assert answer[wire.CLIENTS] == 3  # whatever its data are like
    return answer[wire.READY]


def test_a_node_is_ready_when_its_data_set_loads_and_holds_its_clients(file, caplog):
    overrides = overrides_of(file)
    assert said_ready(Resident(overrides), overrides) is True
    write(file, 1.0, users=3)  # one of them for tests
    assert said_ready(Resident(overrides), overrides) is False
    assert "it declares 3 clients, and from number 0 on its data hold 2" in caplog.text
    file.write_bytes(b"no data")
    assert said_ready(Resident(overrides), overrides) is False


def test_whether_a_node_is_ready_does_not_depend_on_what_one_clients_data_are_like(tmp_path):
    """Values that nothing can be trained on cost their client a zero update, and nobody else a thing."""
    file = tmp_path / "people.npz"
    x = np.ones((4, 3), np.float32)
    x[1] = np.nan
    np.savez(file, x=x, y=np.arange(4) % 2, user=np.arange(4), split=np.array([0, 0, 0, 1]))
    overrides = overrides_of(file)
    kept = Resident(overrides)
    with pytest.raises(Exception, match=r"NaN|finite|not a number"):
        kept.node(overrides).examples_of(":1")
    assert said_ready(kept, overrides) is True


def test_what_happens_to_the_data_after_the_start_changes_no_declaration(file):
    """Until the node is started again: its clients send zero updates meanwhile, as they did."""
    overrides = overrides_of(file)
    content = file.read_bytes()
    kept = Resident(overrides)
    file.unlink()
    kept.refresh()
    assert said_ready(kept, overrides) is True
    broken = Resident(overrides)
    file.write_bytes(content)
    broken.refresh()
    assert said_ready(broken, overrides) is False
    assert said_ready(Resident(overrides), overrides) is True


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_data_that_are_not_kept_are_looked_at_in_a_process_of_their_own(tmp_path):
    """Loaders that start threads would spoil every later fork: nothing of them is left in this process."""
    module = tmp_path / "loader_that_leaves_a_trace.py"
    module.write_text("def load(**settings):\n    raise ValueError('no such ward')\n")
    overrides = "clients=3 dataset=custom dataset.name=loader_that_leaves_a_trace:load"
    sys.path.insert(0, str(tmp_path))
    try:
        kept = Resident(overrides)
        assert module.stem not in sys.modules
        assert kept.is_ready is False
    finally:
        sys.path.remove(str(tmp_path))


def test_a_plain_supernode_says_nothing_of_being_ready(file):
    question = RecordDict({wire.HELD: ConfigRecord({})})
    answer = reply(apps.client_app, MessageType.QUERY, question, "", overrides_of(file))
    assert wire.READY not in answer.content.config_records[wire.HELD]


def test_a_task_is_in_vain_when_twice_what_its_runs_server_waits_is_over(file, monkeypatch):
    kept, known = Resident(overrides_of(file)), [True]
    monkeypatch.setattr(flower_tasks, "is_known", lambda address, token: known[0])
    in_vain = waiting("127.0.0.1:1", kept)
    run = "population.min_available=4 engine.round_timeout=30 engine.query_timeout=20"
    assert kept.longest(run) == 60
    assert kept.longest("population.min_available=4 engine.round_timeout=30 engine.query_timeout=50") == 100
    assert in_vain("token", run, 59) == ""
    assert "engine.round_timeout" in in_vain("token", run, 61)
    for unknown in ("", "no_such_key=1"):  # it has told nothing yet, or what nobody can read
        assert kept.longest(unknown) is None
        assert in_vain("token", unknown, 10**6) == ""
    known[0] = None  # the SuperNode does not answer: that says nothing of the task
    assert in_vain("token", run, 59) == ""
    known[0] = False
    assert "no longer counts it alive" in in_vain("token", run, 1)


def test_a_node_whose_data_kill_the_process_that_looks_at_them_says_so(tmp_path, monkeypatch, caplog):
    """The server tells people that the node's log says why."""
    monkeypatch.setattr(resident, "_is_ready", lambda node: os.kill(os.getpid(), signal.SIGKILL))
    kept = Resident(f"clients=2 dataset=by_user_csv dataset.path={tmp_path / 'people.csv'}")
    assert kept.is_ready is False
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "this node is not ready" in said
    assert "killed by SIGKILL" in said
