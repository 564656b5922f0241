"""The files that hold a server's state: the base, which is public, and the secrets, which are its key and noise stream.

`server.checkpoint` says when they are written, and what may go on from them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import index
from pathlib import Path
from typing import Any

import numpy as np

from fedmf.accounting import Ledger
from fedmf.errors import RunDirectoryError
from fedmf.mechanisms.streams.protocol import StreamState
from fedmf.normals import FORM as NORMALS
from fedmf.npz import read_npz
from fedmf.randomness import SecretKey
from server import register_log
from server.files import UNREADABLE, erase, packed, temporary_path, write_atomically
from server.state import Secrets, ServerState

FORMAT = "fedmf-checkpoint-5"  # 4: noise in float32, which is not private to its last bit
SECRETS = "secrets.npz"
ADDED = "extension.json"
_SLOT = "slot_"  # before the name of each array of the optimizer's state


@dataclass(frozen=True)
class Base:
    """What is public of a state, with the configuration of its run, what was calculated from it, and by what code."""

    state: ServerState
    configuration: Mapping[str, Any]
    calculated: Mapping[str, float | None]
    code: Mapping[str, str] = field(default_factory=dict)

    def save(self, path: Path, register: Mapping[str, Any]) -> None:
        """Put it at `path`, whole or not at all; `register` is how it refers to the register (`server.register_log`)."""
        state = self.state
        about = {
            "format": FORMAT,
            "round": state.round,
            "configuration": dict(self.configuration),
            "calculated": dict(self.calculated),
            "code": dict(self.code),
            "ledger": state.ledger.to_json(),
            "register": dict(register),
        }
        slots = {f"{_SLOT}{name}": array for name, array in state.slots.items()}
        scale = {} if state.scale is None else {"scale": state.scale}
        data = packed(model=state.model, about=np.array(json.dumps(about)), **scale, **slots)
        write_atomically(path, data)

    @classmethod
    def load(cls, path: Path, *, otherwise: str) -> "Base":
        """Return the base at `path`. Raises `RunDirectoryError`, which ends with `otherwise`, if it cannot be read."""
        try:
            arrays = read_npz(path)
            about, model = dict(json.loads(str(arrays.pop("about")))), arrays.pop("model")
            if about.get("format") != FORMAT:
                raise RunDirectoryError(
                    f"format of {path} is {about.get('format')!r}; this version reads {FORMAT!r}, whose noise is of "
                    f"form {NORMALS}. A run continues with the version of fedmf that began it only: one statement cannot cover noise of two "
                    f"forms.{otherwise}"
                )
            register = register_log.load(path.parent, about["register"], otherwise=otherwise)
            ledger = Ledger.from_json(about["ledger"])
            scale = arrays.pop("scale", None)
            slots = {name.removeprefix(_SLOT): array for name, array in arrays.items()}
            state = ServerState(index(about["round"]), model, ledger, register, None, slots, scale)
            return cls(
                state,
                dict(about["configuration"]),
                dict(about.get("calculated", {})),
                dict(about.get("code", {})),
            )
        except (*UNREADABLE, TypeError, RecursionError) as error:
            raise RunDirectoryError(f"{path} is cut short or damaged ({error}).{otherwise}") from error


def register_of(path: Path) -> str | None:
    """Return which file of the register the base at `path` refers to; None where it cannot be read."""
    try:
        return str(json.loads(str(read_npz(path, names=["about"])["about"]))["register"]["file"])
    except (*UNREADABLE, TypeError, RecursionError):
        return None


def save_added(folder: Path, added: Mapping[str, Any]) -> None:
    """Put into `folder` what the last extension of a run changes of its configuration."""
    write_atomically(folder / ADDED, json.dumps({"configuration": dict(added)}).encode())


def read_added(folder: Path) -> dict[str, Any]:
    """Return what `save_added` wrote, nothing where no extension was begun. Raises `RunDirectoryError` if it is damaged."""
    path = folder / ADDED
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text())["configuration"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise RunDirectoryError(f"{path} is cut short or damaged ({error}).") from error


@dataclass(frozen=True)
class Held:
    """The secrets as they were read, with the fingerprint of the tables that their epoch has.

    `normals` is the form of the normals that the epoch's noise is made of; see `fedmf.normals`.
    """

    epoch: int
    mechanism: str
    normals: int
    key: SecretKey
    stream: Mapping[str, np.ndarray] = field(repr=False)

    def secrets(self) -> Secrets:
        """Return them as a state has them."""
        return Secrets(
            self.epoch, self.key, StreamState.from_arrays(dict(self.stream)) if self.stream else None
        )


def save_secrets(folder: Path, secrets: Secrets, mechanism: str) -> None:
    """Put the secrets into `folder`, for the owner alone; those that were there are overwritten."""
    stream = {} if secrets.stream is None else secrets.stream.to_arrays()
    key = np.frombuffer(secrets.key.reveal(), np.uint8)
    about = {"epoch": np.array(secrets.epoch), "mechanism": np.array(mechanism), "normals": np.array(NORMALS)}
    data = packed(**about, key=key, **{f"stream_{k}": v for k, v in stream.items()})
    write_atomically(folder / SECRETS, data, mode=0o600, erase_old=True)


def erase_secrets(folder: Path) -> None:
    """Overwrite and remove the secrets in `folder`, also those that a crash left half-written."""
    erase(folder / SECRETS)
    erase(temporary_path(folder / SECRETS))


def read_secrets(folder: Path) -> Held | None:
    """Return the secrets in `folder`; None where they are gone, erased or damaged."""
    try:
        arrays = read_npz(folder / SECRETS)
        key = SecretKey(arrays.pop("key").tobytes())
        epoch, mechanism = int(arrays.pop("epoch")), str(arrays.pop("mechanism"))
        normals = int(arrays.pop("normals", 1))
    except (*UNREADABLE, TypeError):
        return None
    return Held(
        epoch,
        mechanism,
        normals,
        key,
        {name.removeprefix("stream_"): array for name, array in arrays.items()},
    )
