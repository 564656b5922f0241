"""Another system that plays the rounds of a row in a process of its own, when it is asked to: `others/turns.py`."""

import json
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

import numpy as np

from client.parameters import flat_parameters
from experiments.benchmark.environments import clean_environment
from experiments.benchmark.simulation import L2_NORM, NOISE_MULTIPLIER, SHAPE, TRAINING, Federation
from fedmf.errors import SettingError

SCRIPTS = Path(__file__).parent / "others"
_LIMIT = 900.0  # seconds for one answer on a busy machine
_FAREWELL = 60.0  # seconds to end by itself
_ENDING = 6  # lines of its stderr that are shown when it fails


def write_work(federation: Federation, folder: Path) -> None:
    """Write the cohort, the model to start from and how a client trains, for `others/work.py`."""
    cohort = federation.cohort()
    np.savez(
        folder / "arrays.npz",
        x=np.stack([examples.x for examples in cohort]),
        y=np.stack([examples.y for examples in cohort]),
        start=flat_parameters(federation.build()),
    )
    settings = {
        "model": federation.model,
        "classes": federation.classes,
        "shape": SHAPE,
        "learning_rate": TRAINING.learning_rate,
        "batch_size": TRAINING.batch_size,
        "l2_norm": L2_NORM,
        "noise_multiplier": NOISE_MULTIPLIER,
    }
    (folder / "work.json").write_text(json.dumps(settings))


class OtherSystem:
    """A process that has warmed up and waits for turns; used in a `with` block, whose end ends it."""

    def __init__(self, name: str, command: Sequence[str], federation: Federation) -> None:
        """Start `command`, to which the folder of the work is appended, and let it warm up.

        Raises `SettingError` where it ends, or where its round is not the work of `federation`.
        """
        self.name = name
        self._examples = federation.cohort_size * federation.examples
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        self._log = folder / "stderr.txt"
        write_work(federation, folder)
        own = {
            "CUDA_VISIBLE_DEVICES": "",
            "PFL_PYTORCH_DEVICE": "cpu",
            "FLWR_HOME": str(folder),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=clean_environment(own),
                start_new_session=True,
                text=True,
            )
        try:
            ready = self._answer()
            dimension = sum(parameter.numel() for parameter in federation.build().parameters())
            self._check("parameters", ready["parameters"], dimension)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        """Return the system."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the process; after an error without waiting for the round that it may be playing."""
        self.close(0.0 if any(error) else _FAREWELL)

    def __call__(self) -> float:
        """Play a round, and return the CPU seconds that it took of the process and of all below it."""
        with suppress(BrokenPipeError):  # that it has ended is seen when it does not answer
            _pipe(self._process.stdin).write("turn\n")
            _pipe(self._process.stdin).flush()
        return float(self._answer()["seconds"])

    def close(self, patience: float = _FAREWELL) -> None:
        """Let the process end, and after `patience` seconds end it and all that it started."""
        with suppress(BrokenPipeError):
            _pipe(self._process.stdin).close()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        _pipe(self._process.stdout).close()
        self._folder.cleanup()

    def _answer(self) -> Mapping[str, Any]:
        """Return the next line of the process. Raises `SettingError` where none comes or the work was another."""
        stdout = _pipe(self._process.stdout)
        readable, _, _ = select.select([stdout], [], [], _LIMIT)
        line = stdout.readline() if readable else ""
        try:
            answer: Mapping[str, Any] = json.loads(line)
        except ValueError:
            said = " ".join(self._log.read_text(errors="replace").split("\n")[-_ENDING:]).strip()
            raise SettingError(
                f"compare is {self.name}, which did not play a round: it "
                f"{'said ' + repr(line) if line else 'ended' if readable else f'was silent for {_LIMIT:.0f} s'}. "
                f"The end of its messages: {said}"
            ) from None
        self._check("examples in a round", answer["examples"], self._examples)
        return answer

    def _check(self, what: str, theirs: int, ours: int) -> None:
        """Raise `SettingError` where the other system does other work than we do: its time would mean nothing."""
        if theirs != ours:
            raise SettingError(
                f"compare is {self.name}, which had {theirs} {what} where ours has {ours}: the two do not compare."
            )


def _pipe(stream: IO[str] | None) -> IO[str]:
    """Return a stream that `Popen` was told to make."""
    assert stream is not None
    return stream
