"""Dense matrices of a factorization as a file: what a reader checks a stream against."""

from pathlib import Path

import numpy as np

from fedmf.errors import SettingError
from fedmf.mechanisms import Factorization, RunFactorization
from fedmf.mechanisms.arrays import Float64
from fedmf.mechanisms.streams.protocol import feed
from server.files import packed, write_output

MOST_ROUNDS = 4096  # of an epoch; several epochs may have as many numbers together


def check_exportable(rounds: int, epochs: int) -> None:
    """Raise `SettingError` where the dense matrices of all epochs would be too large."""
    if rounds > MOST_ROUNDS:
        raise SettingError(f"rounds is {rounds}; dense matrices are exported up to {MOST_ROUNDS}.")
    if epochs * rounds**2 > MOST_ROUNDS**2:
        raise SettingError(
            f"epochs is {epochs} with {rounds} rounds each; dense matrices of at most {MOST_ROUNDS**2 // rounds**2} "
            "epochs as long are exported."
        )


def export(run: RunFactorization, file: Path) -> None:
    """Write encoder C (m, T), decoder B (T, m), float64, and what the stream emits for the identity, `noise` (T, T).

    For several epochs each array has a leading axis, one entry an epoch; B is that of the epoch's own rounds.
    """
    parts = [_dense(epoch) for epoch in run.epochs]
    decoder, encoder, noise = (np.stack(arrays) for arrays in zip(*parts, strict=True))
    if len(run.epochs) == 1:
        decoder, encoder, noise = decoder[0], encoder[0], noise[0]
    file.parent.mkdir(parents=True, exist_ok=True)
    write_output(file, packed(encoder=encoder, decoder=decoder, noise=noise))


def _dense(epoch: Factorization) -> tuple[Float64, Float64, Float64]:
    decoder, encoder = epoch.materialize()
    return decoder, encoder, feed(epoch.stream, np.eye(epoch.rounds))
