"""Keep the list of nodes that may take part in a deployment: `python -m experiments.nodes file=nodes.json`.

Prints the list; with `add` it takes up a node by its public key, what people call it and the most clients that it counts
for, with `remove` it takes one out:
    add=node.pub name=hospital-1 most_clients=479
    remove=hospital-1
A run is given the list as `population.nodes=FILE`, and reads it when its server starts: what changes counts from the next
epoch on, but for a node that was taken out, which is not asked again. A node that is added again under its name and key
gets the new number.
"""

from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from experiments.cli import command, output
from experiments.settings.log import messages
from experiments.settings.output import PRINTED, Output
from fedmf.errors import SettingError
from fedmf.setting import REQUIRED, setting
from server.files import locked_while_changed, refuse_others_folder
from server.known_nodes import KnownNode, KnownNodes


@dataclass(frozen=True)
class NodesSettings:
    """Keys of the command."""

    file: str = setting(
        REQUIRED, "the list of nodes, made with the first node that is added; readable by its owner alone"
    )
    add: str | None = setting(
        None,
        "file with the public key of a node that may take part, as ssh-keygen writes it (FILE.pub); "
        "null: none is added",
    )
    name: str | None = setting(None, "what the node that is added is called in logs")
    most_clients: int | None = setting(None, "the most clients that the node that is added may count for")
    remove: str | None = setting(
        None, "name of a node that may not take part any more; null: none is removed"
    )
    output: Output = setting(Output.text, PRINTED)


def nodes(settings: NodesSettings) -> None:
    """Change the list as asked, and print it."""
    path = Path(settings.file)
    if settings.add is not None and settings.remove is not None:
        raise SettingError(
            f"add is {settings.add} and remove is {settings.remove}; give one of them at a time."
        )
    if settings.add is None and (settings.name is not None or settings.most_clients is not None):
        raise SettingError(
            "name and most_clients are of a node that is added; give its public key as add=KEY.pub."
        )
    is_change = settings.add is not None or settings.remove is not None
    show(changed(path, settings) if is_change else listed_in(path), path, settings.output)


def changed(path: Path, settings: NodesSettings) -> KnownNodes:
    """Return the list after the change that was asked for; of two commands at once one waits for the other."""
    added = new_node(settings) if settings.add is not None else None
    if added is None:
        listed_in(path)  # where there is none nothing is made beside it either
    refuse_others_folder("file", path)
    with locked_while_changed(path):
        listed = listed_in(path, is_new=added is not None)
        if added is not None:
            listed = with_node(listed, added)
        if settings.remove is not None:
            listed = without_node(listed, settings.remove)
        listed.save(path)
    return listed


def listed_in(path: Path, *, is_new: bool = False) -> KnownNodes:
    """Return the list in a file; an empty one where there is none and the first node `is_new`."""
    if is_new and not path.exists():
        return KnownNodes(())
    try:
        return KnownNodes.load(path)
    except SettingError as error:
        raise SettingError(str(error).replace("nodes is", "file is", 1)) from error


def new_node(settings: NodesSettings) -> KnownNode:
    """Return the node that is to be added. Raises `SettingError` where something of it is missing."""
    assert settings.add is not None
    if settings.name is None or settings.most_clients is None:
        missing = "name" if settings.name is None else "most_clients"
        raise SettingError(
            f"{missing} is missing for the node of {settings.add}; give it as in add={settings.add} name=hospital-1 "
            "most_clients=479."
        )
    try:
        public_key = Path(settings.add).read_text()
    except (OSError, ValueError) as error:
        raise SettingError(
            f"add is {settings.add}, which cannot be read ({error}); it must be the file with the node's public key."
        ) from error
    if "PRIVATE KEY" in public_key:
        raise SettingError(
            f"add is {settings.add}, a private key; it stays with its node. Ask for the public half, FILE.pub."
        )
    return KnownNode(settings.name, public_key, settings.most_clients)


def with_node(listed: KnownNodes, node: KnownNode) -> KnownNodes:
    """Return the list with a node, in place of an entry of the same name and key."""
    others = tuple(other for other in listed if (other.name, other.key) != (node.name, node.key))
    if len(others) < len(tuple(listed)):
        messages.info(f"{node.name} was listed already; it counts for {node.most_clients} clients now")
    return KnownNodes((*others, node))


def without_node(listed: KnownNodes, name: str) -> KnownNodes:
    """Return the list without the node of a name. Raises `SettingError` where there is none."""
    others = tuple(node for node in listed if node.name != name)
    if len(others) == len(tuple(listed)):
        known = ", ".join(sorted(node.name for node in listed)) or "none"
        raise SettingError(f"remove is {name}, which is no node of the list; it holds {known}.")
    return KnownNodes(others)


def show(listed: KnownNodes, path: Path, form: Output) -> None:
    """Print the list."""
    rows = [
        {"name": node.name, "key": node.key, "most_clients": node.most_clients, "public_key": node.public_key}
        for node in sorted(listed, key=lambda node: node.name)
    ]
    if form is Output.json:
        output.print_json({"file": str(path), "nodes": rows})
        return
    table = Table(title=f"Nodes that may take part, {path}")
    for column in ("name", "key in journal and roster", "most clients"):
        table.add_column(column)
    for row in rows:
        table.add_row(str(row["name"]), str(row["key"]), f"{row['most_clients']}")
    output.console().print(table)


if __name__ == "__main__":
    command.run(nodes, "nodes", NodesSettings, __doc__)
