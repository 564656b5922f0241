"""The private parts of Flower that a warm node and a warm server use, all of them here; tried with the version that `VERSION` names.

Flower 1.41 supports `--isolation process` of flower-supernode and flower-superlink, for which one starts a program of
one's own that asks for tasks. What it does not offer is named at each function.
"""

import importlib
import logging
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any, NoReturn

import httpx
from flwr.app import Context, Message
from flwr.serverapp import ServerApp

log = logging.getLogger(__name__)

VERSION = "1.41"

UNACTIVATED = 2004  # Flower's code of a SuperLink that opens no session for a key

FIRST_AGAIN = 0.05  # seconds until a part of a message that is not there yet is asked for again
_IDLE = 1.0  # seconds: SuperNode's pauses from here on are those between two questions for a message
_AWAKE = 60.0  # seconds after a message for which further ones are expected
_TELLING = (
    httpx.codes.FORBIDDEN,
    httpx.codes.UNAUTHORIZED,
)  # of a token that is known, and of one that is not
_ANSWER = 10.0  # seconds for a SuperLink to answer
_LONGEST = 3.0  # seconds between two questions of a node that nothing was asked of: SuperNode's own


class Pauses:
    """How long to wait between two questions: `quick` seconds for a minute after work, otherwise up to `slow`."""

    def __init__(self, quick: float, slow: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._quick, self._slow, self._clock = quick, max(quick, slow), clock
        self._worked = -_AWAKE

    def worked(self) -> None:
        """Note that there was work."""
        self._worked = self._clock()

    def seconds(self) -> float:
        """Return how long to wait now."""
        return self._quick if self._clock() - self._worked < _AWAKE else self._slow


def run_supernode(arguments: list[str], secret: bytes, quick: float, refused: int) -> None:
    """Run flower-supernode with `arguments` in this process; it ends the process.

    Where the SuperLink refuses to activate the node the exit code is `refused`, and the SuperNode says nothing of it.

    Its pauses, of 3 seconds between two questions for a message and of half a second between two looks for a reply, are
    constants of Flower: they are shortened to `quick` while there is work. The secret goes through a pipe instead of a
    file, so that it stands nowhere.
    """
    loop = importlib.import_module("flwr.supernode.start_client_internal")
    _ask_again_soon(loop)
    loop.pull_objects = _noticing_the_end(loop.pull_objects, loop.RunNotRunningException)  # type: ignore[attr-defined]
    pauses = Pauses(quick, _LONGEST)

    def sleep(seconds: float) -> None:
        if seconds < _IDLE:  # it waits for a reply or for an object
            pauses.worked()
        time.sleep(min(seconds, pauses.seconds()))

    loop.time = SimpleNamespace(sleep=sleep)  # type: ignore[attr-defined]
    connection = importlib.import_module("flwr.supernode.fleet_http_connection")
    exits = connection.flwr_exit

    def end(code: int, message: str) -> None:
        if f"[code: {UNACTIVATED}]" in message:
            os._exit(refused)  # there is no session to take leave of
        exits(code, message)

    connection.flwr_exit = end  # type: ignore[attr-defined]
    sys.argv = ["flower-supernode", *arguments, *_isolation(secret)]
    from flwr.supernode.cli.flower_supernode import flower_supernode

    _to_its_end(flower_supernode)


def _to_its_end(flower: Callable[[], None]) -> NoReturn:
    """Run Flower's command and end the process with it, whatever it raises.

    The thread in which a SuperNode answers executors outlives what it raises (a connection that is cut in a TLS handshake): the
    process would stay, at rest for ever, and nobody would start it again.
    """
    code: int | str | None = 1
    try:
        flower()
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        log.error("the SuperNode failed: %s: %s", type(error).__name__, error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def _noticing_the_end(pull: Callable[..., Any], has_ended: type[BaseException]) -> Callable[..., Any]:
    """Return `pull` that fails in the ordinary way where a run has ended while a message of it is fetched.

    Flower drops the message then and leaves its task: who plays it waits for the message for eight minutes, and meanwhile
    an executor plays no other one, of the same run going on say. After an ordinary failure it ends the task.
    """

    def pulled(*given: Any, **more: Any) -> Any:
        try:
            return pull(*given, **more)
        except has_ended as error:
            raise RuntimeError("the run has ended") from error

    return pulled


def run_superlink(arguments: list[str], secret: bytes) -> None:
    """Run flower-superlink with `arguments` in this process; it ends the process. The secret goes through a pipe.

    Flower looks for tasks whose process was not heard of for a minute at each request that asks for a run's state, which is
    nearly all of them, and several times at some. It is done once a second here, for the one database that a SuperLink has.
    """
    state = importlib.import_module("flwr.supercore.corestate.sql_corestate").SqlCoreState
    state._cleanup_expired_task_tokens = _seldom(state._cleanup_expired_task_tokens)
    sys.argv = ["flower-superlink", *arguments, *_isolation(secret)]
    from flwr.superlink.cli.flower_superlink import flower_superlink

    flower_superlink()


def _ask_again_soon(module: Any) -> None:
    """Let `module` ask soon for a part of a message that was announced and is not there yet.

    Flower asks again after 1, 2, 4 ... seconds, and whoever is told of a message at once asks before its parts have come: of a
    round of 2.5 seconds with three nodes half was this.
    """
    module.pull_objects = partial(module.pull_objects, initial_backoff=FIRST_AGAIN)


def _seldom(
    look: Callable[[Any], None], pause: float = _IDLE, clock: Callable[[], float] = time.monotonic
) -> Callable[[Any], None]:
    """Return `look`, a method, that does nothing where it was done less than `pause` seconds ago."""
    last = -math.inf

    def looked(state: Any) -> None:
        nonlocal last
        if clock() - last >= pause:
            look(state)
            last = clock()

    return looked


def _isolation(secret: bytes) -> list[str]:
    """Return the arguments with which a program of one's own plays the tasks, and signs its questions with the secret."""
    reads, writes = os.pipe()
    os.write(writes, secret)
    os.close(writes)
    return ["--isolation", "process", "--superexec-auth-secret-file", f"/dev/fd/{reads}"]


@dataclass(frozen=True)
class Giver:
    """Who gives tasks: its name in messages, their kind, and the authority of its certificate; None: plain, on loopback."""

    name: str = "SuperNode"
    task: str = "flwr-clientapp"
    authority: bytes | None = None


@dataclass(frozen=True)
class Answer:
    """What a SuperLink answers to a node: HTTP status, Flower's code of a refusal if any, and its own time."""

    status: int
    code: int | None
    date: str


def ask_activation(address: str, authority: Path, key: Path) -> Answer:
    """Ask a SuperLink to activate the node with `key` for a heartbeat of 0 seconds, which it refuses to all: no session begins.

    Raises `httpx.HTTPError` where there is no answer.
    """
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.proto.fleet_pb2 import ActivateNodeRequest, ActivateNodeResponse
    from flwr.supercore.error import FlowerError
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    private: Any = load_ssh_private_key(key.read_bytes(), None)
    signed = NodeAuthHttpInterceptor(private, private.public_key())
    client = FleetHttpClient.from_server_address(
        address,
        insecure=False,
        root_certificates=authority.read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperNode"), signed],
    )
    try:
        client._unary_unary(
            path="/v1/fleet/activate-node",
            rpc_method="/flwr.proto.Fleet/ActivateNode",
            request=ActivateNodeRequest(
                public_key=public_key_to_bytes(private.public_key()), heartbeat_interval=0
            ),
            response_type=ActivateNodeResponse,
            timeout=_ANSWER,
        )
    except httpx.HTTPStatusError as error:
        response = error.response
        refusal = FlowerError.from_json(response.text)
        code = None if refusal is None else int(refusal.code)
        return Answer(response.status_code, code, response.headers.get("date", ""))
    finally:
        client.close()
    return Answer(200, None, "")


class TaskSource:
    """Asks `giver` on this machine for the tokens of tasks, as Flower's SuperExec does, signed with the secret."""

    def __init__(self, address: str, secret: bytes, giver: Giver = Giver()) -> None:
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
        from flwr.supercore.runtime import RuntimeHttpClient

        signed = SuperExecAuthHttpInterceptor(
            master_secret=secret, protected_methods={"/flwr.proto.Runtime/AcquireTask"}
        )
        self._client = RuntimeHttpClient.from_server_address(
            server_address=address,
            insecure=giver.authority is None,  # loopback alone
            root_certificates=giver.authority,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec"), signed],
        )
        self._giver, self._said = giver, ""

    def acquire(self) -> str | None:
        """Return the token of a task that waits, None where none does or its giver does not answer."""
        from flwr.proto.runtime_pb2 import AcquireTaskRequest

        request = AcquireTaskRequest(supported_task_types=[self._giver.task])
        try:
            answer = self._client.AcquireTask(request)
        except httpx.ConnectError as error:  # it starts, or starts again
            if "CERTIFICATE" in str(error):
                self._say(str(error))
            return None
        except httpx.HTTPError as error:
            self._say(f"{type(error).__name__}: {error}")
            return None
        return answer.token or None

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _say(self, text: str) -> None:
        if text != self._said:
            log.warning("the %s gave no task: %s", self._giver.name, text)
        self._said = text


def is_known(address: str, token: str) -> bool | None:
    """Say whether the SuperNode at `address` still waits for the task of `token`; None: it does not answer.

    It gives a task up whose process was not heard of for a minute, and knows none of before its own start. The question is one
    that every process of a node's task is refused, so that nothing follows from it: a heartbeat would keep alive what hangs.
    """
    from flwr.proto.runtime_pb2 import GetNodesRequest
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient

    client = RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,  # loopback alone
        root_certificates=None,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"),
            RuntimeTokenHttpInterceptor(token),
        ],
    )
    try:
        client.GetNodes(GetNodesRequest())
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        return status == httpx.codes.FORBIDDEN if status in _TELLING else None
    except httpx.HTTPError:
        return None
    finally:
        client.close()
    return None


def play_task(
    address: str, token: str, check: Callable[[bytes], Any], app: Callable[[Message, Context], Message]
) -> None:
    """Play one task with `app`, as the process of a task does that Flower starts; it exits when done.

    In place of unpacking the run's bundle and importing its code, which is imported already, `check` is called with the
    bundle. What it raises is the reply.
    """
    from flwr.supercore.exit import exit_handler

    process = importlib.import_module("flwr.supernode.runtime.run_clientapp")
    process.install_from_fab = lambda content, **_: check(content)  # type: ignore[attr-defined]
    process.get_load_client_app_fn = lambda *_, **__: lambda *_: app  # type: ignore[attr-defined]
    # A SuperNode offers a task before it has all of its message, see `_ask_again_soon`.
    process.pull_and_inflate_object_from_tree = partial(  # type: ignore[attr-defined]
        process.pull_and_inflate_object_from_tree, initial_backoff=FIRST_AGAIN, backoff_cap=_IDLE
    )
    exit_handler.registered_exit_handlers.clear()
    process.run_clientapp(address, token, insecure=True, runtime_dependency_install=False)


def play_run(
    address: str, token: str, authority: bytes, check: Callable[[bytes], Any], app: ServerApp
) -> None:
    """Play the task of a run with `app`, as the process of a server app does that Flower starts; it exits when done.

    In place of unpacking the run's bundle and importing its code, which is imported already, `check` is called with the
    bundle. What it raises ends the run, and the run's log and state say it. The log is sent to the SuperLink.
    """
    from flwr.common.config import flatten_dict, fuse_dicts, get_fab_config
    from flwr.supercore.exit import exit_handler
    from flwr.supercore.logger import mirror_output_to_queue

    process = importlib.import_module("flwr.superlink.runtime.run_serverapp")
    play, project = process.run_, {}

    def install(bundle: bytes, **_: Any) -> None:
        check(bundle)
        project.update(get_fab_config(bundle))

    def settings(_: Any, given: Any) -> Any:
        return fuse_dicts(flatten_dict(project["tool"]["flwr"]["app"].get("config", {})), given)

    def run(server_app_attr: str, **given: Any) -> Context:
        context: Context = play(loaded_server_app=app, **given)
        return context

    process.install_from_fab = install  # type: ignore[attr-defined]
    process.get_project_config = lambda _: project  # type: ignore[attr-defined]
    process.get_fused_config_from_dir = settings  # type: ignore[attr-defined]
    process.run_ = run  # type: ignore[attr-defined]
    _ask_again_soon(importlib.import_module("flwr.superlink.grid.http_grid"))
    exit_handler.registered_exit_handlers.clear()
    lines: Queue[str | None] = Queue()
    mirror_output_to_queue(lines)
    process.run_serverapp(
        address, lines, token, insecure=False, certificates=authority, runtime_dependency_install=False
    )
