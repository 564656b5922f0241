"""What an executor keeps between messages, so that its children need not make it again: settings and the node's data.

A fork shares what its parent has read. The node's data set is kept where what it was read from is known: a file whose
size, times and inode are still those of when it was read, or nothing (`digits`, `synthetic`). Every child looks at the
file again; another file is read anew by the child, as without an executor, and by the parent after it. Folders, tables
and loaders of one's own are read for every message: what they depend on cannot be told, or a library that reads them
starts threads, which a fork would lose (pyarrow's, for tables and partitioned arrays).
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from experiments.deployment.executor import succeeds
from experiments.deployment.node import OVERRIDES, Node, answer_query, node_settings, readiness
from experiments.deployment.node_app import Sources, reply_to, run_settings
from experiments.settings.engine import DeploymentSettings
from experiments.settings.schema import Settings

log = logging.getLogger(__name__)

WITHOUT_FILES = ("digits", "synthetic")
OF_ONE_FILE = ("by_user_npz", "by_user_text")

NOT_LOOKED_AT = "this node is not ready: its data could not be looked at"

Stamp = tuple[tuple[int, ...], ...]


def stamp_of(arguments: Mapping[str, Any]) -> Stamp | None:
    """Return what changes with the files that a data set is read from; None: it is not known which, or not to be kept."""
    name = arguments.get("name")
    if name in WITHOUT_FILES:
        return ()
    path, vocabulary = arguments.get("path"), arguments.get("vocabulary")
    if name not in OF_ONE_FILE or path is None:
        return None
    files = [Path(str(file)).expanduser() for file in (path, vocabulary) if file is not None]
    try:
        if not all(file.is_file() for file in files):
            return None
        states = [os.stat(file) for file in files]
    except OSError:
        return None
    return tuple((s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in states)


class Resident:
    """The settings and the data of the node that `overrides` describe, kept for as long as they hold.

    `is_ready` says whether the node was ready when this was made, which stays what it tells the server.
    """

    def __init__(self, overrides: str) -> None:
        self._overrides = overrides
        self._node = Node.of(node_settings(overrides))
        self._stamp: Stamp | None = None  # of the data that are kept
        self._run: tuple[str, Settings] | None = None
        self.refresh()
        self.is_ready = self._found_ready()

    def _found_ready(self) -> bool:
        """Say whether the node is ready, once for as long as this process lives: see `node.readiness`."""
        if self._stamp is None:  # what is not kept is read in a child: some loaders start threads
            return succeeds(lambda: _is_ready(replace(self._node)), NOT_LOOKED_AT)
        return _is_ready(self._node)

    def refresh(self) -> None:
        """Read the data if they can be kept and are not, or no longer, those kept."""
        stamp = stamp_of(self._node.arguments)
        if stamp is not None and stamp == self._stamp:
            return
        self._node, self._stamp = replace(self._node), None  # drops what was read
        if stamp is None:
            return
        try:
            held = len(self._node.dataset.clients)
        except (Exception, SystemExit) as error:
            log.error(
                "this node's data cannot be loaded; a client that is asked to train sends a zero update: %s",
                error,
            )
            return
        self._stamp = stamp
        log.info("holds a data set of %d clients between messages", held)

    def learn_run(self, overrides: str) -> None:
        """Keep the settings of the run that a child has played; mistakes in them are for the child to say."""
        if self._run is not None and self._run[0] == overrides:
            return
        try:
            self._run = overrides, run_settings(overrides)
        except Exception as error:
            log.debug("the settings of a run are not kept: %s", error)

    def longest(self, overrides: str) -> float | None:
        """Return seconds after which no server of the run waits for a task that began then; None: it is not known.

        It waits `engine.round_timeout`, or `query_timeout`, from when all tasks of the round are sent. This one began when
        it was sent itself, before others: twice as long is past both.
        """
        if not overrides:
            return None
        self.learn_run(overrides)
        if self._run is None or self._run[0] != overrides:
            return None
        engine = self._run[1].engine
        if not isinstance(engine, DeploymentSettings):
            return None
        return 2 * max(engine.round_timeout, engine.query_timeout)

    def node(self, overrides: object) -> Node:
        """Return the node that `overrides` describe, with the data kept if they are still those on disk."""
        if overrides != self._overrides:
            return Node.of(node_settings(overrides))
        is_kept = self._stamp is not None and stamp_of(self._node.arguments) == self._stamp
        return self._node if is_kept else replace(self._node)

    def run(self, overrides: str) -> Settings:
        """Return the settings of the run that `overrides` describe."""
        known = self._run
        return known[1] if known is not None and known[0] == overrides else run_settings(overrides)

    def app(self) -> ClientApp:
        """Return the client app of `deployment.apps`, for processes that have imported everything."""
        app = ClientApp()

        @app.train()
        def train(message: Message, context: Context) -> Message:
            return reply_to(message, context, Sources(self.node, self.run))

        @app.query()
        def query(message: Message, context: Context) -> Message:
            node = self.node(context.node_config.get(OVERRIDES))
            return answer_query(node, message, is_ready=self.is_ready)

        return app


def _is_ready(node: Node) -> bool:
    """Say whether the node is ready, and log why it is not."""
    if why := readiness(node):
        log.error(
            "this node is not ready: %s. It says so to the server, which waits for it or begins the epoch without it; mend the "
            "data (fedmf node_check tells when they are right) and start the node again",
            why,
        )
    return not why
