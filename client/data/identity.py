"""Who the clients of a data set are, in order, as a digest under a key.

A run goes on after a crash, and a node after a restart, only with the clients it began with: a number stands for
the same unit of privacy all the time.
"""

from collections.abc import Sequence

from client.data.dataset import Examples, LazyClients, identify_each
from client.data.fingerprint import Fingerprint
from fedmf.errors import DataError
from fedmf.randomness import SecretKey

_TRIED = 4  # clients that are read twice before a run begins


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


def refuse_changing_clients(clients: Sequence[Examples]) -> None:
    """Raise `DataError` for clients that hold something else at each reading, as with augmentation.

    A run on them could never be resumed: its clients would not be recognised. A few clients are read twice; those that
    say in an `identify` of their own who they are must write the same twice.
    """
    key = SecretKey.generate()
    for first in sorted({k * max(len(clients) - 1, 0) // (_TRIED - 1) for k in range(_TRIED)}):
        once, again = (digest_clients(clients, key, first, first + 1) for _ in range(2))
        if once != again:
            raise DataError(
                f"client {first} of the data set holds other examples at each reading, so that a run could not be "
                "resumed: its clients would not be recognised. Give the clients a method identify that writes what "
                "stays the same (docs/data.md), or draw the examples from a seed."
            )
