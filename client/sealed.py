"""A node's tasks opened and its replies sealed (`fedmf.sealing`), as a mod of a Flower ClientApp.

    app = ClientApp(mods=[without_reasons, sealed])

A node that was given box keys does nothing for a task that the run's server has not sealed for it. Its --node-config names
them: box_key="FILE" holds its own private one in PEM, server_box_key="BASE64" is the server's public one.
"""

import logging
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedmf.errors import RunStoppedError, SettingError
from fedmf.sealing import (
    PUBLIC,
    RUN_KEY,
    SEALED,
    about_reply,
    about_task,
    digest_public,
    node_channel,
    private_box_key,
    public_box_key,
    seal,
    unseal,
)

log = logging.getLogger(__name__)

OVERRIDES = "overrides"  # of the run's configuration: its settings, which the server has sealed too
BOX_KEY, SERVER_BOX_KEY = "box_key", "server_box_key"  # of --node-config


def without_reasons(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """Let the app answer; what it raises stays in this node's log, and an error without its text is the reply.

    Flower sends an exception's text unsealed, and it may quote a setting or a path of this machine.
    """
    try:
        return call_next(message, context)
    except Exception:
        log.exception("A message of run %d could not be answered.", context.run_id)
        raise RunStoppedError("the node could not answer; its own log says why.") from None


def sealed(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Open the task, let the app answer it, and seal the answer; a node without keys lets all pass as it is.

    Raises `SettingError` for keys that cannot be used, and for a task that was not sealed for this node by its server.
    """
    keys = box_keys(context)
    task = message.content.config_records.get(SEALED, ConfigRecord())
    if keys is None:
        if task:
            raise SettingError(
                "the task is sealed, and this node has no box_key in its --node-config; give it one."
            )
        return call_next(message, context)
    metadata, models = message.metadata, message.content.array_records
    about = about_task(metadata.run_id, metadata.group_id, metadata.message_type)
    boxes = {name: box for name, box in task.items() if isinstance(box, bytes)}
    run_key = boxes.pop(RUN_KEY, b"")
    if len(run_key) != 32:
        raise SettingError(
            "the task is not sealed, and this node has a box_key; it does nothing for who sent it."
        )
    channel = node_channel(X25519PublicKey.from_public_bytes(run_key), keys[1], keys[0])
    found = unseal(channel.to_node, boxes, about)
    overrides = str(context.run_config.get(OVERRIDES, ""))
    if found.keys() != boxes.keys() or found.pop(PUBLIC, b"") != digest_public(overrides, models):
        raise SettingError(
            "the task was not sealed for this node by its server; nothing is done for who sent it."
        )
    question = about_reply({**boxes, RUN_KEY: run_key})
    message.content = RecordDict(
        {**models, **{name: ConfigRecord.inflate(text) for name, text in found.items()}}
    )
    reply = call_next(message, context)
    records = {name: record.deflate() for name, record in reply.content.config_records.items()}
    reply.content = RecordDict({SEALED: ConfigRecord(dict(seal(channel.to_server, records, question)))})
    return reply


def box_keys(context: Context) -> tuple[X25519PrivateKey, X25519PublicKey] | None:
    """Return the node's private box key and its server's public one, None where --node-config names neither."""
    file, server = (context.node_config.get(name) for name in (BOX_KEY, SERVER_BOX_KEY))
    if file is None and server is None:
        return None
    if file is None or server is None:
        raise SettingError(f"{BOX_KEY} and {SERVER_BOX_KEY} belong together in --node-config; give both.")
    try:
        theirs = public_box_key(str(server))
    except ValueError as error:
        raise SettingError(
            f"{SERVER_BOX_KEY} is {server}; it must be the base64 of 32 bytes ({error})."
        ) from error
    return private_box_key(Path(str(file))), theirs
