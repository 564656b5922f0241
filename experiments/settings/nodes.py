"""The list of nodes that may participate in a deployment, a YAML file of its operator (population.nodes)."""

import os
import stat
from pathlib import Path

import yaml

from fedmf.errors import SettingError
from server.known_nodes import KnownNode, KnownNodes

SERVER_BOX_KEY = "server_box_key"
OF_A_NODE = {"name": str, "public_key": str, "most_clients": int}


def known_nodes(file: str) -> tuple[KnownNodes, Path | None]:
    """Return the list of nodes in a YAML file of the server's machine, and the file of the server's box key, None for none.

        server_box_key: /etc/fedmf/server-box.pem
        nodes:
          - {name: hospital-1, public_key: ecdsa-sha2-nistp384 AAAA..., box_key: qmv3..., most_clients: 479}

    Raises `SettingError` for no such list, for an empty one, for one of which only a part has box keys, and for a file that
    other accounts can change.
    """
    if not Path(file).is_absolute():
        raise SettingError(f"nodes is {file}; a deployment needs an absolute path on the server's machine.")
    try:
        check_own_file("nodes", Path(file))  # such an account could let anyone participate
        document = yaml.safe_load(Path(file).read_bytes())
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingError(f"nodes is {file}, which cannot be read as YAML ({error}).") from error
    rows = document.get("nodes") if isinstance(document, dict) else None
    if not rows or not isinstance(rows, list) or not {*document} <= {SERVER_BOX_KEY, "nodes"}:
        raise SettingError(
            f"nodes is {file}, which lists no node; it must contain nodes, and may contain {SERVER_BOX_KEY}."
        )
    box_key = document.get(SERVER_BOX_KEY)
    fields = OF_A_NODE if box_key is None else {**OF_A_NODE, "box_key": str}
    for row in rows:
        if not isinstance(row, dict) or {name: type(value) for name, value in row.items()} != fields:
            raise SettingError(
                f"nodes is {file}, which lists {row!r}; a node has {', '.join(fields)}, and no more."
            )
    listed = KnownNodes(tuple(KnownNode(**row) for row in rows))
    if box_key is not None and len({node.box_key for node in listed}) < len(rows):
        raise SettingError(f"nodes is {file}, in which two nodes have one box_key; each needs its own.")
    if box_key is not None and not Path(str(box_key)).is_absolute():
        raise SettingError(
            f"nodes is {file}, whose {SERVER_BOX_KEY} is {box_key}; it must be an absolute path."
        )
    return listed, None if box_key is None else Path(str(box_key))


def check_own_file(name: str, path: Path) -> None:
    """Raise `SettingError` where another account than this one or root could change a file or put another in its place.

    `name` is the name of the setting with the path. Owners and modes decide, of the file, of the folders above it, and of
    those above its target. Where the sticky bit of a folder is set, as in /tmp, others may make files and cannot
    replace those that are there.
    """
    for place in dict.fromkeys((path, *path.absolute().parents, *path.resolve().parents)):
        entry = place.stat()
        where = "" if place == path else f" is below {place}, which"
        if entry.st_uid not in {0, os.geteuid()}:  # accounts that control this process anyway
            raise SettingError(
                f"{name} is {path}, which{where} belongs to user id {entry.st_uid}: the owner can change the file or replace "
                f"it. It must belong to user id {os.geteuid()}, which runs this command, or to root."
            )
        is_sticky = place != path and entry.st_mode & stat.S_ISVTX
        if entry.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not is_sticky:
            raise SettingError(
                f"{name} is {path}, which{where} others than its owner may write to. Run chmod go-w {place}."
            )
