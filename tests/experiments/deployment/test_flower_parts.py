"""The private parts of Flower that a warm node uses are those of the version that the module names."""

import ast
import datetime
import importlib
import inspect
import subprocess
import sys
import threading
import time
from contextlib import closing

import flwr
import pytest
import uvicorn
from flwr.common.constant import SubStatus
from flwr.supercore.constant import TaskType
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode.main import create_app
from flwr.supernode.nodestate import NodeStateFactory

from experiments.deployment import flower_parts
from experiments.deployment.flower_parts import VERSIONS, Pauses
from experiments.deployment.flower_tasks import TaskSource, is_known
from experiments.deployment.loopback import HOST, free_port

SECRET = b"a secret of both"


def test_flower_is_of_the_version_that_was_tried():
    assert flwr.__version__.startswith(VERSIONS)


def test_the_loop_of_a_supernode_uses_time_for_the_pauses_that_are_shortened_and_nothing_else():
    source = inspect.getsource(importlib.import_module("flwr.supernode.start_client_internal"))
    nodes = list(ast.walk(ast.parse(source)))
    used = [
        node
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "time"
    ]
    assert {node.attr for node in used} == {"sleep"}
    pauses = {node.args[0].value for node in nodes if isinstance(node, ast.Call) and node.func in used}
    assert pauses == {3, 0.5}


def test_a_task_takes_bundle_and_app_from_the_names_that_are_replaced():
    process = importlib.import_module("flwr.supernode.runtime.run_clientapp")
    source = inspect.getsource(process.run_clientapp)
    assert "install_from_fab(fab.content, skip_prompt=True)" in source
    assert "load_client_app_fn = get_load_client_app_fn(" in source
    assert "client_app(message=message, context=context)" in source
    assert callable(process.install_from_fab)
    assert callable(process.get_load_client_app_fn)


def test_pauses_are_short_for_a_minute_after_work():
    now = [0.0]
    pauses = Pauses(0.1, 3.0, clock=lambda: now[0])
    assert pauses.seconds() == 3.0
    pauses.worked()
    now[0] = 59.0
    assert pauses.seconds() == 0.1
    now[0] = 61.0
    assert pauses.seconds() == 3.0


def test_nobody_who_answers_is_no_task():
    with closing(TaskSource(f"{HOST}:{free_port()}", SECRET)) as source:
        assert source.acquire() is None


@pytest.fixture(scope="module")
def supernode():
    """A SuperNode's own interface with one waiting task, on the loopback interface; its address and its state."""
    factory = NodeStateFactory(objectstore_factory=ObjectStoreFactory())
    port = free_port()
    app = create_app(state_factory=factory, superexec_auth_secret=SECRET)
    server = uvicorn.Server(uvicorn.Config(app, host=HOST, port=port, log_level="error", ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while thread.is_alive() and not server.started:
        time.sleep(0.01)
    assert server.started
    yield f"{HOST}:{port}", factory.state()
    server.should_exit = True
    thread.join()


def test_a_task_is_given_to_who_knows_the_secret_alone(supernode, caplog):
    address, state = supernode
    assert state.create_task(task_type=TaskType.CLIENT_APP, run_id=1, fab_hash="00") is not None
    with closing(TaskSource(address, b"another secret")) as source:
        assert source.acquire() is None
    assert "the SuperNode gave no task" in caplog.text
    assert "another secret" not in caplog.text
    with closing(TaskSource(address, SECRET)) as source:
        token = source.acquire()
        assert token is not None
        assert len(token) > 60
        assert source.acquire() is None  # it is given once


def test_a_supernode_says_whether_it_waits_for_a_task_and_keeps_nothing_alive_for_the_question(supernode):
    address, state = supernode
    number = state.create_task(task_type=TaskType.CLIENT_APP, run_id=2, fab_hash="00")
    token = state.claim_task(number)
    until = state.task_token_store[number].active_until
    assert is_known(address, token) is True
    assert state.task_token_store[number].active_until == until
    assert is_known(address, "f" * len(token)) is False
    assert state.activate_task(number)
    assert is_known(address, token) is True
    state.task_token_store[number].active_until -= datetime.timedelta(minutes=2)  # nothing was heard of it
    assert is_known(address, token) is False


def test_a_supernode_that_does_not_answer_says_nothing_of_a_task():
    assert is_known(f"{HOST}:{free_port()}", "f" * 64) is None


def test_a_run_that_ends_while_its_message_is_fetched_fails_the_task_in_the_ordinary_way():
    """Flower catches `Exception` and ends the task; its own signal is none, and would leave the task to wait."""

    class Ended(BaseException):
        pass

    def pull(*given, **more):
        if given:
            raise Ended
        return more

    noticing = flower_parts._noticing_the_end(pull, Ended)
    assert noticing(of=3) == {"of": 3}
    with pytest.raises(Exception, match="the run has ended"):
        noticing("object")


@pytest.mark.parametrize(
    ("ends", "code"),
    [("raise OSError('cut off in a handshake')", 1), ("sys.exit(76)", 76), ("sys.exit()", 0), ("pass", 0), ("sys.exit('no')", 1)],
)  # fmt: skip
def test_a_supernode_that_ends_ends_its_process_though_a_thread_of_its_lives_on(ends, code):
    program = (
        "import sys, threading, time\nfrom experiments.deployment.flower_parts import _to_its_end\n"
        f"def flower():\n    threading.Thread(target=time.sleep, args=(60,)).start()\n    {ends}\n"
        "_to_its_end(flower)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert done.returncode == code
    assert ("the SuperNode failed: OSError: cut off in a handshake" in done.stderr) == ("raise" in ends)


_ASKS = """
import importlib, time
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError

def asked(module):
    asked = []
    def pull(name):
        asked.append(name)
        if len(asked) == 1:
            raise ObjectUnavailableError(name)
        return b"it"
    begun = time.monotonic()
    assert importlib.import_module(module).pull_objects(["a part"], pull) == {"a part": b"it"}
    print("waited", time.monotonic() - begun)
"""
_SUPERNODE = """
cli = importlib.import_module("flwr.supernode.cli.flower_supernode")
cli.flower_supernode = lambda: asked("flwr.supernode.start_client_internal")
parts = importlib.import_module("experiments.deployment.flower_parts")
parts.run_supernode([], b"x" * 32, .2, 76)
"""
_SERVER_APP = """
process = importlib.import_module("flwr.superlink.runtime.run_serverapp")
process.run_serverapp = lambda *_, **__: asked("flwr.superlink.grid.http_grid")
tasks = importlib.import_module("experiments.deployment.flower_tasks")
tasks.play_run("127.0.0.1:9", "token", b"", lambda _: None, None)
"""


@pytest.mark.parametrize("plays", [_SUPERNODE, _SERVER_APP])
def test_a_part_that_is_not_there_yet_is_asked_for_again_soon(plays):
    """Flower alone asks after .8 seconds at the earliest: two such waits were most of a warm round."""
    done = subprocess.run([sys.executable, "-c", _ASKS + plays], capture_output=True, text=True, timeout=60)
    assert float(done.stdout.partition("waited ")[2].split()[0]) < 0.4, done.stderr


@pytest.mark.parametrize("module", ["flwr.supernode.start_client_internal", "flwr.superlink.grid.http_grid"])
def test_parts_are_pulled_by_the_name_that_is_replaced_with_no_pause_of_their_own(module):
    source = inspect.getsource(importlib.import_module(module))
    calls = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("pull_objects")
    ]
    assert [ast.unparse(call.func) for call in calls] == ["pull_objects"]
    assert not {"initial_backoff", None} & {word.arg for word in calls[0].keywords}


def test_tasks_that_nobody_was_heard_of_are_looked_for_once_a_second():
    now, looked = [100.0], []
    look = flower_parts._seldom(lambda state: looked.append((state, now[0])), 1.0, clock=lambda: now[0])
    for now[0] in (100.0, 100.5, 100.9, 101.0, 101.5, 103.0):
        look("state")
    assert looked == [("state", 100.0), ("state", 101.0), ("state", 103.0)]


def test_a_look_that_failed_is_made_again_at_once():
    tried = []

    def look(state):
        tried.append(state)
        raise OSError("the database is locked")

    seldom = flower_parts._seldom(look)
    for _ in range(2):
        with pytest.raises(OSError, match="locked"):
            seldom("state")
    assert tried == ["state", "state"]


def test_a_superlink_looks_for_lost_tasks_by_the_method_that_is_replaced():
    program = (
        "import importlib\n"
        "parts = importlib.import_module('experiments.deployment.flower_parts')\n"
        "state = importlib.import_module('flwr.supercore.corestate.sql_corestate').SqlCoreState\n"
        "cli = importlib.import_module('flwr.superlink.cli.flower_superlink')\n"
        "looks = []\n"
        "state._cleanup_expired_task_tokens = looks.append\n"
        "cli.flower_superlink = lambda: [state._cleanup_expired_task_tokens(name) for name in 'ab']\n"
        "parts.run_superlink([], b'x' * 32)\n"
        "print(*looks)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "a\n", done.stderr
    assert "_cleanup_expired_task_tokens()" in inspect.getsource(
        importlib.import_module("flwr.server.superlink.linkstate.sql_linkstate").SqlLinkState.get_run_status
    )


@pytest.mark.parametrize("ends", [SubStatus.FAILED, SubStatus.COMPLETED])
def test_a_supernode_waits_no_longer_than_a_moment_for_the_reply_of_a_task_that_has_ended(ends):
    now, state = [0.0], NodeStateFactory(objectstore_factory=ObjectStoreFactory()).state()
    hope = flower_parts.Hope(clock=lambda: now[0])
    number = state.create_task(task_type=TaskType.CLIENT_APP, run_id=1, fab_hash="00")
    hope.of(state)
    for now[0] in (0.0, 1000.0):  # nobody has taken it yet
        hope.refuse_none()
    assert state.claim_task(number) is not None
    hope.refuse_none()
    assert state.activate_task(number)
    for now[0] in (2000.0, 3000.0):
        hope.refuse_none()
    assert state.finish_task(number, ends, "")
    for now[0] in (3001.0, 3015.0):
        hope.refuse_none()
    now[0] = 3016.0
    with pytest.raises(RuntimeError, match="a task ended without the reply"):
        hope.refuse_none()


def test_waiting_for_the_next_reply_begins_anew():
    now, state = [0.0], NodeStateFactory(objectstore_factory=ObjectStoreFactory()).state()
    hope = flower_parts.Hope(clock=lambda: now[0])
    for now[0] in (0.0, 20.0):
        hope.of(state)
        hope.refuse_none()


def test_a_supernode_pushes_by_the_name_that_is_replaced_and_with_these_words():
    source = inspect.getsource(importlib.import_module("flwr.supernode.start_client_internal"))
    (call,) = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "_push_messages"
    ]
    assert not call.args
    assert "state" in {word.arg for word in call.keywords}


_CHANGED = """
import importlib, logging
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode.nodestate import NodeStateFactory
parts = importlib.import_module("experiments.deployment.flower_parts")
loop = importlib.import_module("flwr.supernode.start_client_internal")
cli = importlib.import_module("flwr.supernode.cli.flower_supernode")
class Ends(BaseException): pass
loop.RunNotRunningException = Ends

def ends(*given, **more):
    raise Ends

loop.pull_objects = ends
now, hope = [0.0], parts.Hope
parts.Hope = lambda: hope(clock=lambda: now[0])

def push(state):
    for now[0] in (0.0, 10.0, 20.0):
        loop.time.sleep(0)

loop._push_messages = push

def look():
    try:
        loop.pull_objects([], None)
    except Exception as error:
        print(error)
    try:
        loop._push_messages(state=NodeStateFactory(objectstore_factory=ObjectStoreFactory()).state())
    except RuntimeError as error:
        print(error)
    for path in ("get-nodes", "pull-messages"):
        logging.getLogger("flwr").error("[/v1/runtime/%s][ApiError:3005] no", path)

cli.flower_supernode = look
parts.run_supernode([], b"x" * 32, .2, 76)
"""


def test_a_supernode_ends_tasks_of_runs_that_ended_waits_for_no_failed_ones_and_logs_no_questions():
    done = subprocess.run([sys.executable, "-c", _CHANGED], capture_output=True, text=True, timeout=60)
    said = ["the run has ended", "a task ended without the reply that is waited for"]
    assert done.stdout.splitlines()[:2] == said, done.stderr
    assert "get-nodes" not in done.stderr + done.stdout
    assert "pull-messages" in done.stderr + done.stdout


def test_a_task_waits_for_its_message_as_long_as_the_supernode_fetches_it_and_asks_soon():
    program = (
        "import importlib\n"
        "process = importlib.import_module('flwr.supernode.runtime.run_clientapp')\n"
        "process.run_clientapp = lambda *_, **__: print(process.pull_and_inflate_object_from_tree.keywords)\n"
        "tasks = importlib.import_module('experiments.deployment.flower_tasks')\n"
        "tasks.play_task('127.0.0.1:9', 'token', lambda _: None, None)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    asked = ast.literal_eval(done.stdout)
    assert asked["max_tries_per_object"] is None
    assert asked["initial_backoff"] < 0.1
    assert asked["backoff_cap"] <= 1
