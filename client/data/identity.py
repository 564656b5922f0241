"""Who the clients of a data set are, in order, as a digest under a key.

A run goes on after a crash, and a node after a restart, only with the clients it began with: a number stands for
the same unit of privacy all the time.
"""

from collections.abc import Sequence

from client.data.dataset import Examples, LazyClients, identify_each
from client.data.fingerprint import Fingerprint
from fedmf.randomness import SecretKey


def digest_clients(
    clients: Sequence[Examples], key: SecretKey, first: int = 0, stop: int | None = None
) -> str:
    """Return a digest under `key` of clients `first` to `stop` (None: the last), as 64 hexadecimal digits.

    It covers what `LazyClients.identify` says of them: names, content, or what they are drawn from. Clients in a plain
    sequence are read one by one.
    """
    numbers = range(first, len(clients) if stop is None else min(stop, len(clients)))
    fingerprint = Fingerprint(key)
    fingerprint.text(f"{numbers.start} {numbers.stop}")
    if isinstance(clients, LazyClients):
        clients.identify(fingerprint, numbers)
    else:
        identify_each(clients, fingerprint, numbers)
    return fingerprint.hexdigest()
