"""The private parts of Flower with which the tasks of a SuperNode and of a SuperLink are played, see `flower_parts`."""

import importlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import Queue
from typing import Any

import httpx
from flwr.app import Context, Message
from flwr.serverapp import ServerApp

from experiments.deployment.flower_parts import FIRST_AGAIN, ask_again_soon

log = logging.getLogger(__name__)

_LONGEST = 1.0  # seconds between two questions of a task for a part of its message
_TELLING = (
    httpx.codes.FORBIDDEN,
    httpx.codes.UNAUTHORIZED,
)  # of a token that is known, and of one that is not


@dataclass(frozen=True)
class Giver:
    """Who gives tasks: its name in messages, their kind, and the authority of its certificate; None: plain, on loopback."""

    name: str = "SuperNode"
    task: str = "flwr-clientapp"
    authority: bytes | None = None


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
    # A SuperNode offers a task before it has all of its message, see `ask_again_soon`: this waits while it fetches them,
    # for up to two hours.
    process.pull_and_inflate_object_from_tree = partial(  # type: ignore[attr-defined]
        process.pull_and_inflate_object_from_tree,
        initial_backoff=FIRST_AGAIN,
        backoff_cap=_LONGEST,
        max_tries_per_object=None,
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
    ask_again_soon(importlib.import_module("flwr.superlink.grid.http_grid"))
    exit_handler.registered_exit_handlers.clear()
    lines: Queue[str | None] = Queue()
    mirror_output_to_queue(lines)
    process.run_serverapp(
        address, lines, token, insecure=False, certificates=authority, runtime_dependency_install=False
    )
