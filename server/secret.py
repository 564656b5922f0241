"""The one secret file of a run, checkpoint/secrets.npz, mode 0600: the epoch's key and noise stream, and where the run began.

It is written aside, renamed and forced to disk; what was there before is overwritten with zeros. It never enters the
database. Without it a run can release nothing, so that it goes when the run is over.

    about       JSON: epoch, fingerprint of its tables, form of its normals; and the run's origin (`server.copies`)
    key         (32,) uint8, the epoch's key
    digest_key  (32,) uint8, under which the clients' digest was made
    stream_*    the arrays of the noise stream; none before the epoch's first round
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedmf.errors import SettingError
from fedmf.mechanisms.streams.protocol import StreamState
from fedmf.normals import FORM as NORMALS
from fedmf.npz import read_npz
from fedmf.randomness import SecretKey
from server.copies import Origin
from server.files import UNREADABLE, erase, packed, temporary_path, write_atomically
from server.state import Secrets

FILE = "secrets.npz"
_STREAM = "stream_"  # before the name of each array of the noise stream


@dataclass(frozen=True)
class Kept:
    """What is in the file: the secrets of an epoch, the fingerprint of its tables and the form of its normals, the run's origin."""

    secrets: Secrets
    mechanism: str
    normals: int
    origin: Origin


def save(folder: Path, secrets: Secrets, mechanism: str, origin: Origin) -> None:
    """Put the secrets into `folder`, for the owner alone; those that were there are overwritten."""
    about = {"epoch": secrets.epoch, "mechanism": mechanism, "normals": NORMALS, "origin": origin.to_json()}
    stream = {} if secrets.stream is None else secrets.stream.to_arrays()
    data = packed(
        about=np.array(json.dumps(about)),
        key=np.frombuffer(secrets.key.reveal(), np.uint8),
        digest_key=np.frombuffer(origin.key.reveal(), np.uint8),
        **{f"{_STREAM}{name}": array for name, array in stream.items()},
    )
    write_atomically(folder / FILE, data, mode=0o600, erase_old=True)


def read(folder: Path) -> Kept | None:
    """Return the secrets in `folder`; None where they are gone, erased, damaged or not as this program writes them."""
    try:
        arrays = read_npz(folder / FILE)
        key, digest_key = (SecretKey(arrays.pop(name).tobytes()) for name in ("key", "digest_key"))
        about = json.loads(str(arrays.pop("about")))
        origin = Origin.from_json(about["origin"], digest_key)
        arrays = {name.removeprefix(_STREAM): array for name, array in arrays.items()}
        secrets = Secrets(int(about["epoch"]), key, StreamState.from_arrays(arrays) if arrays else None)
        return Kept(secrets, str(about["mechanism"]), int(about["normals"]), origin)
    except (*UNREADABLE, TypeError, AttributeError, RecursionError, SettingError):
        return None


def forget(folder: Path) -> None:
    """Overwrite and remove the secrets in `folder`, also those that a crash left half-written."""
    erase(folder / FILE)
    erase(temporary_path(folder / FILE))
