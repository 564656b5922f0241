"""A Flower Grid in this process: the same ServerApp and ClientApp as in a deployment, without transport.

Uses two private parts of Flower 1.41 (TaskIdentity, message ids), here only; tests/experiments/test_local_grid.py names the
version they were checked with. Replies are computed when they are pulled, one at a time, so that memory does not grow with the cohort.
"""

from collections.abc import Iterable
from itertools import count

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

RUN_ID, NODE_ID = 1, 1
_CLIENT_APP_RAISED = 2  # Flower's error code for it


class LocalGrid(Grid):
    """One node that plays every client by calling `client_app`."""

    def __init__(self, client_app: ClientApp) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN_ID, NODE_ID
        self._client_app = client_app
        self._context = local_context()
        self._pending: dict[str, Message] = {}
        self._ids = count(1)

    def set_run(self, run: Run) -> None:
        """Do nothing: this grid serves one run."""

    @property
    def run(self) -> Run:
        """An empty run with this grid's id."""
        return Run.create_empty(RUN_ID)

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Return a message to a node."""
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Return the one node."""
        return [NODE_ID]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Keep messages until their replies are pulled; returns their ids."""
        return [self._keep(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the reply to the first of `message_ids` that is still pending, by running its client now."""
        for message_id in message_ids:
            if message_id in self._pending:
                return [self._reply(self._pending.pop(message_id))]
        return []

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Return the replies to all messages."""
        return [reply for message_id in self.push_messages(messages) for reply in self.pull_messages([message_id])]

    def _reply(self, message: Message) -> Message:
        try:
            return self._client_app(message, self._context)
        except Exception as error:  # as Flower's own engines do, a client's exception becomes an error reply
            return Message(Error(code=_CLIENT_APP_RAISED, reason=type(error).__name__), reply_to=message)

    def _keep(self, message: Message) -> str:
        message_id = f"{next(self._ids):012d}"
        message.metadata.__dict__["_message_id"] = message_id
        self._pending[message_id] = message
        return message_id


def local_context() -> Context:
    """Return an empty Flower context for apps that run in this process."""
    return Context(RUN_ID, NODE_ID, {}, RecordDict(), {})


def run_locally(server_app: ServerApp, client_app: ClientApp) -> None:
    """Run a ServerApp against a ClientApp in this process."""
    server_app(LocalGrid(client_app), local_context())
