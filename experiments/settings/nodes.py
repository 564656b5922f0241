"""The list of nodes that may take part in a deployment, as its operator writes it in YAML (population.nodes)."""

from pathlib import Path

import yaml

from fedmf.errors import SettingError
from server.files import check_own_file
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
        check_own_file("nodes", Path(file))  # they could let anyone take part
        document = yaml.safe_load(Path(file).read_bytes())
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingError(f"nodes is {file}, which cannot be read as YAML ({error}).") from error
    rows = document.get("nodes") if isinstance(document, dict) else None
    if not rows or not isinstance(rows, list) or not {*document} <= {SERVER_BOX_KEY, "nodes"}:
        raise SettingError(
            f"nodes is {file}, which lists no node; it must hold nodes, and may hold {SERVER_BOX_KEY}."
        )
    box_key = document.get(SERVER_BOX_KEY)
    fields = OF_A_NODE if box_key is None else {**OF_A_NODE, "box_key": str}
    for row in rows:
        if not isinstance(row, dict) or {name: type(value) for name, value in row.items()} != fields:
            raise SettingError(
                f"nodes is {file}, which lists {row!r}; a node has {', '.join(fields)}, and no more."
            )
    listed = KnownNodes(tuple(KnownNode(**row) for row in rows))
    if box_key is None:
        return listed, None
    if len({node.box_key for node in listed}) < len(rows):
        raise SettingError(f"nodes is {file}, in which two nodes have one box_key; each needs its own.")
    if not Path(str(box_key)).is_absolute():
        raise SettingError(
            f"nodes is {file}, whose {SERVER_BOX_KEY} is {box_key}; it must be an absolute path."
        )
    return listed, Path(str(box_key))
