"""Another system that plays the rounds of a row in a process of its own, when it is asked to: `others/turns.py`."""

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TextIO

import numpy as np

from client.parameters import flat_parameters
from experiments.benchmark.environments import clean_environment
from experiments.benchmark.others.turns import ANSWERS
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
        read, write = os.pipe()
        self._answers = os.fdopen(read)
        with self._log.open("wb") as log, os.fdopen(write):
            self._process = subprocess.Popen(
                [*command, str(folder)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=clean_environment(own | {ANSWERS: str(write)}),
                pass_fds=[write],
                start_new_session=True,
                text=True,
            )
        assert self._process.stdin is not None
        self._asking = self._process.stdin
        try:
            ready = self._answer()
            dimension = sum(parameter.numel() for parameter in federation.build().parameters())
            self._check("parameters", ready["parameters"], dimension)
        except BaseException:
            self.close(0.0)
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
            self._asking.write("turn\n")
            self._asking.flush()
        return float(self._answer()["seconds"])

    def close(self, patience: float = _FAREWELL) -> None:
        """Let the process end, for `patience` seconds, and then end it and whatever it left behind."""
        with suppress(BrokenPipeError):
            self._asking.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        with suppress(ProcessLookupError):  # nobody of its group is left
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._answers.close()
        self._folder.cleanup()

    def _answer(self) -> Mapping[str, Any]:
        """Return the next line of the process. Raises `SettingError` where none comes or the work was another."""
        deadline = time.monotonic() + _LIMIT
        readable: list[TextIO] = []
        while not readable and time.monotonic() < deadline:
            ended = self._process.poll() is not None  # a child that lives on may hold the pipe open
            readable, _, _ = select.select([self._answers], [], [], 0.0 if ended else 1.0)
            if ended:
                break
        line = self._answers.readline() if readable else ""
        if not line:
            state = (
                "ended" if self._process.poll() is not None or readable else f"was silent for {_LIMIT:.0f} s"
            )
            said = " ".join(self._log.read_text(errors="replace").split("\n")[-_ENDING:]).strip()
            raise SettingError(
                f"compare is {self.name}, which did not play a round: it {state}. The end of its messages: {said}"
            )
        answer: Mapping[str, Any] = json.loads(line)
        self._check("examples in a round", answer["examples"], self._examples)
        return answer

    def _check(self, what: str, theirs: int, ours: int) -> None:
        """Raise `SettingError` where the other system does other work than we do: its time would mean nothing."""
        if theirs != ours:
            raise SettingError(
                f"compare is {self.name}, which had {theirs} {what} where ours has {ours}: the two do not compare."
            )
