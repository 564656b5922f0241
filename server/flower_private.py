"""The private parts of Flower that fedmf uses, all of them; tests/test_architecture.py names the versions they were checked with."""

from collections.abc import Iterator
from contextlib import contextmanager

from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPushError as ObjectPushError,  # of an upload that was lost
)
from flwr.supercore.run import Run as Run  # what a `Grid` has in its attribute `run`
from flwr.supercore.task_identity import TaskIdentity

VERSIONS = ("1.41.", "1.42.")
# Among the variables of a message's metadata; a grid sets it when it sends the message.
MESSAGE_ID = "_message_id"


def set_identity(run_id: int, node_id: int) -> None:
    """Tell Flower who this process is; messages cannot be made before."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run_id, node_id


@contextmanager
def kept_identity() -> Iterator[None]:
    """Restore this process's identity after the block."""
    before = TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id
    try:
        yield
    finally:
        TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id = before
