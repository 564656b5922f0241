"""How many clients of the round under way have been played: a count, the same whether they could train or not."""

from collections.abc import Callable

# Called with how many clients of the round under way have been played, and how many were asked.
OnClients = Callable[[int, int], None]


def ignore_clients(done: int, asked: int) -> None:
    """Show nothing."""


class ClientCount:
    """Counts the clients of a round, one by one where they are played in this process, else by their messages."""

    def __init__(self, on_clients: OnClients = ignore_clients) -> None:
        self._on_clients = on_clients
        self._asked = self._played = self._heard = 0

    def asked(self, clients: int) -> None:
        """Begin a round, or ask it again."""
        self._asked, self._played, self._heard = clients, 0, 0
        self._on_clients(0, clients)

    def played(self) -> None:
        """Count a client of which this process knows that its turn is over."""
        self._played += 1
        self._tell()

    def heard(self, clients: int) -> None:
        """Count the clients of a message that was answered."""
        self._heard += clients
        self._tell()

    def _tell(self) -> None:
        self._on_clients(min(self._asked, max(self._played, self._heard)), self._asked)
