"""This project's own deployment as a target of faults: real processes on the loopback interface, each node behind a forwarder."""

import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from experiments.deployment.lifeline import undisturbed
from experiments.deployment.loopback import Loopback
from experiments.deployment.process_list import is_fork_of, plays_a_run, processes_at
from experiments.run_files.reader import is_finished
from experiments.soak.evidence import Evidence
from experiments.soak.faults import send
from experiments.soak.forwarder import Forwarder
from experiments.soak.hostile_executor import TOLD
from experiments.soak.other_node import EXECUTOR, LIAR, OWN, WITNESS
from experiments.soak.small_disk import SmallDisk
from experiments.soak.small_proxy import SmallProxy
from experiments.soak.target import LINK, SERVER
from experiments.soak.witness import NOTES, Note, read
from server.known_nodes import KnownNode, KnownNodes

CLIENTS = 8  # of a node
_LARGEST_QUESTION = 256  # bytes: requests of a node that carry no reply are smaller
_PAUSE = 3.0  # seconds before a run that ended is submitted again
_SUPERLINK = "superlink"  # as `Loopback` calls it


class LoopbackTarget:
    """A SuperLink, nodes and one run after the other, which is resumed whenever it ends: a context.

    `overrides` are those of the runs besides what a deployment on this machine needs. After `last_run` no run follows the
    one under way.
    """

    def __init__(self, nodes: int, overrides: Sequence[str], seed: int) -> None:
        self._further, self._seed = list(overrides), seed
        self._names = [f"node{number}" for number in range(1, nodes + 1)]
        self._stack, self._ways = ExitStack(), dict[str, Forwarder]()
        self._submitted, self._is_last, self._has_no_database = 0.0, False, False
        self.runs: list[Evidence] = []

    def __enter__(self) -> Self:
        """Start SuperLink and nodes, and submit the first run."""
        with ExitStack() as stack:
            self._loopback = stack.enter_context(Loopback())
            self._disk = stack.enter_context(SmallDisk(self._loopback.folder / "disk"))
            self._loopback.start_superlink()
            for node in self._names:
                self._loopback.register(node)
                self._ways[node] = stack.enter_context(Forwarder(self._loopback.port))
                self.start(node)
            self._save_list()
            self._next_run()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        """End everything that was started, by its id, and remove what was written."""
        with undisturbed():  # a second Ctrl-C would leave a file system mounted
            for run in self.runs:
                run.close()
            for node in self._names:  # what is stopped would not hear that it should end
                send(self.processes(node), signal.SIGCONT)
            self._stack.close()

    @property
    def nodes(self) -> Sequence[str]:
        """The names of the nodes."""
        return self._names

    @property
    def folder(self) -> Path:
        """A folder in memory, removed at the end."""
        return self._loopback.folder

    @property
    def disk(self) -> SmallDisk:
        """The disk of the run directories."""
        return self._disk

    @property
    def link_port(self) -> int:
        """The SuperLink's port."""
        return self._loopback.port

    def processes(self, part: str) -> list[int]:
        """Return a part's processes: they are found by the Flower home of their machine."""
        if part not in (SERVER, LINK):
            return processes_at(self._loopback.home(part))
        there = processes_at(self._loopback.home(_SUPERLINK))
        return there if part == LINK else [number for number in there if plays_a_run(number)]

    def playing(self, node: str) -> list[int]:
        """Return the forks of a node's executor, whichever that is."""
        return [
            number
            for number in processes_at(self._loopback.home(node))
            if any(is_fork_of(number, module) for module in (OWN, LIAR, WITNESS))
        ]

    def lies(self, node: str) -> int:
        """Return how many false answers a node has given since it was last started to lie."""
        file = self._lies_of(node)
        return file.stat().st_size if file.exists() else 0

    def way_of(self, node: str) -> Forwarder:
        """Return the forwarder before a node."""
        return self._ways[node]

    def start(self, part: str, environment: Mapping[str, str] | None = None, *, lying: bool = False) -> None:
        """Start a part again. With the SuperLink the run goes on, and after a lost database so do keys and nodes."""
        self._reap()
        if part == LINK:
            self._loopback.start_superlink()
            if self._has_no_database:
                self._register_again()
        if part in (LINK, SERVER):
            self._submit()
            return
        further = dict(environment or {})
        if part == self._names[0]:
            further |= {EXECUTOR: WITNESS, NOTES: str(self._notes)}
        if lying:
            self._lies_of(part).unlink(missing_ok=True)
            further |= {EXECUTOR: LIAR, TOLD: str(self._lies_of(part))}
        module = "experiments.soak.other_node" if EXECUTOR in further else "experiments.node"
        variables = [f"{name}={value}" for name, value in further.items()]
        self._loopback.start_node(
            part,
            self.holding(part),
            port=self._ways[part].port,
            command=["env", *variables, sys.executable, "-m", module],
        )

    def stop(self, part: str) -> None:
        """End a node in order: it takes its leave of the SuperLink."""
        if self._loopback.is_known(part):
            self._loopback.stop(part)

    def lose_database(self) -> None:
        """Remove the SuperLink's database; its nodes' keys are registered again when it starts."""
        for file in self.folder.glob("superlink.db*"):
            file.unlink()
        self._has_no_database = True

    def refuse_replies(self, node: str) -> SmallProxy:
        """Put a proxy before the SuperLink whose limit is below the size of any reply."""
        files = self._loopback.certificates
        proxy = SmallProxy(
            self.link_port,
            _LARGEST_QUESTION,
            certificate=files.certificate,
            key=files.key,
            authority=files.authority,
        )
        return self._stack.enter_context(proxy)

    def released(self) -> int:
        """Return how many rounds all runs have shown."""
        return sum(len(run.shown) for run in self.runs)

    def tend(self) -> None:
        """Look at the run under way, resume it where it has ended, and begin the next one after it."""
        run = self.runs[-1]
        run.look()
        if self._loopback.is_running("run") or not self._loopback.is_running(_SUPERLINK):
            return
        if is_finished(run.directory):
            if not self._is_last:
                self._next_run()
        elif time.monotonic() > self._submitted + _PAUSE:
            self._submit()

    def last_run(self) -> None:
        """Let no run follow the one under way."""
        self._is_last = True

    def has_ended(self) -> bool:
        """Say whether the last run is finished."""
        return self._is_last and is_finished(self.runs[-1].directory)

    def holding(self, node: str) -> str:
        """Return the overrides of the data that a node holds."""
        return f"clients={CLIENTS} first={CLIENTS * self._names.index(node)} {self._data()}"

    def holdings(self) -> dict[str, str]:
        """Return the same for all nodes, by their keys."""
        return {
            known.key: self.holding(node) for node, known in zip(self._names, self._listed(), strict=True)
        }

    @property
    def witness(self) -> str:
        """The key of the node that notes the models that it is given."""
        return next(iter(self.holdings()))

    def notes(self, directory: Path) -> list[Note]:
        """Return what it noted of the run in `directory`."""
        return read(self._notes, directory)

    def overrides(self, directory: Path) -> str:
        """Return the overrides of the run in `directory`."""
        clients = CLIENTS * len(self._names)
        least = (
            clients - CLIENTS if len(self._names) > 1 else clients
        )  # a run goes on without one of its nodes
        return " ".join(
            [
                f"run.directory={directory} run.resume=true seed={self._seed} {self._data()}",
                f"population.min_available={least} population.cohort_size={max(1, least // 4)} population.epochs=10",
                f"population.nodes={directory.parent.parent / 'nodes.json'} run.checkpoint_every=3 run.evaluations=1",
                "privacy.epsilon=null privacy.noise_multiplier=1 compression.keep_probability=0.5",
                "engine.round_timeout=10 engine.query_timeout=10 engine.node_timeout=240",
                *self._further,
            ]
        )

    def keep(self, folder: Path) -> None:
        """Copy what the processes said, and the run directories, to `folder`."""
        for file in (*self.folder.glob("*.log"), *self.folder.glob(self._notes.name)):
            shutil.copy(file, folder)
        for run in self.runs:
            with suppress(OSError):
                shutil.copytree(run.directory, folder / run.directory.name, dirs_exist_ok=True)

    @property
    def _notes(self) -> Path:
        return self.folder / "models.jsonl"

    def _lies_of(self, node: str) -> Path:
        return self.folder / f"{node}.lies"

    def _data(self) -> str:
        return f"dataset=synthetic dataset.clients={CLIENTS * len(self._names)} dataset.features=5 dataset.classes=3"

    def _next_run(self) -> None:
        self.runs.append(Evidence(self._disk.folder / f"run-{len(self.runs) + 1}"))
        self._submit()

    def _submit(self) -> None:
        if self._loopback.is_known("run"):
            self._loopback.stop("run")
        self._submitted = time.monotonic()
        self._loopback.submit(self.overrides(self.runs[-1].directory))

    def _register_again(self) -> None:
        """Do what a lost database asks of the operators: register the keys, and restart the nodes."""
        self._has_no_database = False
        for node in self._names:
            file = self.folder / f"{node}.pub"
            self._loopback.call("flwr", "supernode", "register", file, "loopback")
            self.stop(node)
            self.start(node)

    def _listed(self) -> list[KnownNode]:
        keys = ((node, (self.folder / f"{node}.pub").read_text()) for node in self._names)
        return [KnownNode(node, key, CLIENTS) for node, key in keys]

    def _save_list(self) -> None:
        KnownNodes(tuple(self._listed())).save(self.folder / "nodes.json")

    def _reap(self) -> None:
        """Forget the processes that have ended: `Loopback` takes them for a failure of its own."""
        for name in (*self._names, _SUPERLINK):
            if self._loopback.is_known(name) and not self._loopback.is_running(name):
                self._loopback.kill(name)
