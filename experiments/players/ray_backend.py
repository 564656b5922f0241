"""What Flower's Ray engine plays messages on; a file of its own, since the base class brings Flower's database: 0.7 s."""

from collections.abc import Callable

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.server.superlink.fleet.vce.backend.backend import Backend

from experiments.players.ray_workers import RayWorkers


class WorkersBackend(Backend):
    """What Flower's engine hands each message to: a worker of the run's own pool.

    Flower's own pool fills the cluster with actors, whatever a run asks for, and goes on handing messages to one that
    has died.
    """

    def __init__(self, workers: RayWorkers) -> None:
        self._workers = workers
        self._app: ClientApp | None = None

    def build(self, app_fn: Callable[[], ClientApp]) -> None:
        """Take the app that the workers run; they are there already."""
        self._app = app_fn()

    @property
    def num_workers(self) -> int:
        """How many messages are played at a time."""
        return self._workers.count

    def is_worker_idle(self) -> bool:
        """Say whether a worker has nothing to do."""
        return self._workers.has_idle

    def process_message(self, message: Message, context: Context) -> tuple[Message, Context]:
        """Return a worker's reply, and the context as it was: clients keep no state."""
        assert self._app is not None
        return self._workers.play(self._app, message, context), context

    def terminate(self) -> None:
        """Do nothing: who started the workers ends them."""
