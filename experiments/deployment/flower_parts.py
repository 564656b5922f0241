"""The private parts of Flower with which SuperNode and SuperLink are run; tried with the versions that `VERSIONS` names.

Those with which their tasks are played are in `flower_tasks`; there are no other ones in this package.

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
from types import SimpleNamespace
from typing import Any, NoReturn

import httpx
from flwr.common.constant import Status

from experiments.deployment.lifeline import code_of

log = logging.getLogger(__name__)

VERSIONS = ("1.41.", "1.42.")

UNACTIVATED = 2004  # Flower's code of a SuperLink that opens no session for a key

FIRST_AGAIN = 0.05  # seconds until a part of a message that is not there yet is asked for again
_IDLE = 1.0  # seconds: SuperNode's pauses from here on are those between two questions for a message
_AWAKE = 60.0  # seconds after a message for which further ones are expected
_UNDER_WAY = (Status.PENDING, Status.STARTING, Status.RUNNING)
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


class Hope:
    """Whether the reply that a SuperNode waits for can still come: from a task that is under way, or was a moment ago.

    Flower replies in the place of a task whose process is no longer heard of, and of none that failed: it would wait for
    ever, at rest, and the node would take part in nothing any more.
    """

    def __init__(self, patience: float = 15.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience, self._clock = patience, clock
        self._state: Any = None
        self._since: float | None = None

    def of(self, state: Any) -> None:
        """Begin to wait for a reply in the SuperNode's `state`."""
        self._state, self._since = state, None

    def refuse_none(self) -> None:
        """Raise `RuntimeError` where no task was under way for some seconds."""
        if self._state.get_tasks(statuses=_UNDER_WAY):
            return
        if self._since is None:
            self._since = self._clock()
        if self._clock() - self._since >= self._patience:
            raise RuntimeError("a task ended without the reply that is waited for")


def run_supernode(arguments: list[str], secret: bytes, quick: float, refused: int) -> None:
    """Run flower-supernode with `arguments` in this process; it ends the process.

    Where the SuperLink refuses to activate the node the exit code is `refused`, and the SuperNode says nothing of it.

    Its pauses, of 3 seconds between two questions for a message and of half a second between two looks for a reply, are
    constants of Flower: they are shortened to `quick` while there is work. Where it waits for a reply that cannot come it
    ends, to be started again. The secret goes through a pipe instead of a
    file, so that it stands nowhere.
    """
    logging.getLogger("flwr").addFilter(_says_nothing_of_questions)
    loop = importlib.import_module("flwr.supernode.start_client_internal")
    ask_again_soon(loop)
    loop.pull_objects = _noticing_the_end(loop.pull_objects, loop.RunNotRunningException)  # type: ignore[attr-defined]
    pauses, hope, push = Pauses(quick, _LONGEST), Hope(), loop._push_messages

    def pushed(**given: Any) -> None:
        hope.of(given["state"])
        push(**given)

    def sleep(seconds: float) -> None:
        if seconds < _IDLE:  # it waits for a reply or for an object
            pauses.worked()
            hope.refuse_none()
        time.sleep(min(seconds, pauses.seconds()))

    loop._push_messages = pushed  # type: ignore[attr-defined]

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
    code = 1
    try:
        flower()
        code = 0
    except SystemExit as end:
        code = code_of(end)
    except BaseException as error:
        log.error("the SuperNode failed: %s: %s", type(error).__name__, error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _noticing_the_end(pull: Callable[..., Any], has_ended: type[BaseException]) -> Callable[..., Any]:
    """Return `pull` that fails in the ordinary way where a run has ended while a message of it is fetched.

    Flower drops the message then and leaves its task: who plays it waits for the message for hours, and meanwhile
    an executor plays no other one, of the same run going on say. After an ordinary failure it ends the task.
    """

    def pulled(*given: Any, **more: Any) -> Any:
        try:
            return pull(*given, **more)
        except has_ended as error:
            raise RuntimeError("the run has ended") from error

    return pulled


def _says_nothing_of_questions(record: logging.LogRecord) -> bool:
    """Say whether a line of the log is none of those about the questions of `flower_tasks.is_known`, which are refused."""
    return "[/v1/runtime/get-nodes]" not in record.getMessage()


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


def ask_again_soon(module: Any) -> None:
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
