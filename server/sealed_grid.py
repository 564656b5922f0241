"""A Grid whose tasks and replies travel sealed between this server and each node (`fedmf.sealing`).

Flower 1.41 gives the parts of any message to any registered node that names them, and takes a reply from any that knows its
question. Sealed, both are of no use to a third: it reads nothing, and what it makes counts as no reply of the node.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedmf.sealing import (
    PUBLIC,
    RUN_KEY,
    SEALED,
    Channel,
    about_reply,
    about_task,
    digest_public,
    seal,
    server_channel,
    unseal,
)
from server.known_nodes import connected


class SealedGrid:
    """Passes messages to `grid`; the ConfigRecords of tasks are sealed for their node, and those of replies opened.

    `box_keys` are the nodes' public keys by what record and roster call a node. Models travel as they are, because they are
    public; a node opens a task only with the model, and under the run's `overrides`, for which it was sealed. A message to a
    node that is not connected any more, or has no box key, is not sent.
    """

    def __init__(
        self, grid: Grid, key: X25519PrivateKey, box_keys: Mapping[str, X25519PublicKey], overrides: str = ""
    ) -> None:
        self._grid, self._key, self._box_keys, self._overrides = grid, key, box_keys, overrides
        self._run_key = X25519PrivateKey.generate()
        # Of the message before, and the digest of what was open with it: all messages of a round share their model.
        self._models: list[ArrayRecord] = []
        self._digest = digest_public(overrides, {})
        self._channels: dict[int, Channel] = {}  # by node id
        self._asked: dict[str, tuple[Channel, bytes]] = {}  # by message id: what the reply is about

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Seal the messages and send them; returns their ids, "" for one to a node that is not there."""
        asked = [(message, self._channel(message.metadata.dst_node_id)) for message in messages]
        sent = [(message, channel) for message, channel in asked if channel is not None]
        for message, channel in sent:
            if SEALED not in message.content:  # else it is sent once more
                message.content = self._sealed(channel, message)
        ids = list(self._grid.push_messages([message for message, _ in sent]))
        for (message, channel), name in zip(sent, ids, strict=True):
            self._asked[name] = channel, about_reply(_boxes(message.content))
        left = iter(ids)
        return [next(left) if channel is not None else "" for _, channel in asked]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return replies to some of the messages, opened; one that the node has not sealed has no content."""
        return [self._opened(reply) for reply in self._grid.pull_messages(message_ids)]

    def _channel(self, node_id: int) -> Channel | None:
        if node_id not in self._channels:
            for name, node in connected(self._grid).items():
                if name in self._box_keys and node not in self._channels:
                    self._channels[node] = server_channel(self._run_key, self._key, self._box_keys[name])
        return self._channels.get(node_id)

    def _sealed(self, channel: Channel, message: Message) -> RecordDict:
        metadata, models = message.metadata, message.content.array_records
        about = about_task(metadata.run_id, metadata.group_id, metadata.message_type)
        records = {name: record.deflate() for name, record in message.content.config_records.items()}
        boxes = seal(channel.to_node, {PUBLIC: self._public(models), **records}, about)
        own = {RUN_KEY: self._run_key.public_key().public_bytes_raw()}
        return RecordDict({**models, SEALED: ConfigRecord({**boxes, **own})})

    def _public(self, models: Mapping[str, ArrayRecord]) -> bytes:
        """Return the digest of what travels in the open, made once a round."""
        records = list(models.values())
        if [*map(id, records)] != [*map(id, self._models)]:
            self._models, self._digest = records, digest_public(self._overrides, models)
        return self._digest

    def _opened(self, reply: Message) -> Message:
        if not reply.has_error():
            asked = self._asked.pop(reply.metadata.reply_to_message_id, None)
            # The first reply alone is heard.
            found = {} if asked is None else unseal(asked[0].to_server, _boxes(reply.content), asked[1])
            records = {name: _record(text) for name, text in found.items()}
            reply.content = RecordDict(
                {name: record for name, record in records.items() if record is not None}
            )
        return reply


def _boxes(content: RecordDict) -> Mapping[str, Any]:
    return dict(content.config_records.get(SEALED, {}))


def _record(text: bytes) -> ConfigRecord | None:
    """Return the record that a node has sealed, None where it has sealed something else."""
    try:
        return ConfigRecord.inflate(text)
    except Exception:  # whatever a hostile node sends counts as no reply
        return None
