"""A client that keeps to no protocol: it sends its vector neither clipped nor looked at, and answers twice."""

import numpy as np

from client.app import sent_bytes, unpack
from experiments.audit.scene import Scene, name_of, plan_of
from experiments.engines.grid import clients_of
from fedmf.updates import wire

SCENE = Scene("rotated, a hostile client")


class Hostile:
    """A worker around another one with a hostile client; without masks, and one client to a message."""

    def __init__(self, worker, scene, holds, client):
        self._worker, self._plan, self._holds, self._client = worker, plan_of(scene), holds, client
        self._asked = {}

    def submit(self, messages):
        """Hand on the tasks, and remember which are the client's."""
        name = name_of(self._client)
        self._asked |= {one.metadata.message_id: one for one in messages if clients_of(one) == [name]}
        self._worker.submit(messages)

    def collect(self, message_ids):
        """Return what the worker has; of the client its own vector, twice."""
        replies = []
        for reply in self._worker.collect(message_ids):
            message = self._asked.pop(reply.metadata.reply_to_message_id, None)
            if message is not None:
                (task,), _ = unpack(message)
                vector = self._now(int(message.metadata.group_id))
                with np.errstate(invalid="ignore", over="ignore"):
                    sent = sent_bytes(self._plan.rotation.turn(vector).values, task)
                reply.content.config_records[wire.UPDATE][wire.VALUES] = [sent]
                replies.append(reply)
            replies.append(reply)
        return replies

    def _now(self, number):
        return self._holds(self._client, number)


def around(scene, holds, client):
    """Return what makes a worker of which one client is hostile."""
    return lambda worker: Hostile(worker, scene, holds, client)
