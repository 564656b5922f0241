"""Tell the operator of a node whether its data load, before any run: `python -m experiments.node_check ...`.

Takes the overrides of the SuperNode's --node-config, for example
    python -m experiments.node_check clients=479 dataset=by_user_npz dataset.path=/srv/people.npz
Exits 2 with one sentence where the data cannot be loaded or hold fewer clients than declared. With `model=...`
it counts the parameters, which must be those of the server.
"""

from rich.table import Table

from experiments.cli import command, output
from experiments.deployment.holdings import examine
from experiments.deployment.node import Node, NodeSettings
from experiments.settings.data import print_notes
from experiments.settings.output import Output


def node_check(settings: NodeSettings) -> None:
    """Print what this node would bring into a run."""
    node = Node.of(
        settings, clients_only=False
    )  # also what is to be said of the texts, which test lines tell
    found = examine(node, settings)
    print_notes(node.dataset)
    if settings.output is Output.json:
        output.print_json(found)
        return
    table = Table(title="This node's data load", show_header=False)
    for name, value in found.items():
        table.add_row(name.replace("_", " "), f"{value}")
    output.console().print(table)


if __name__ == "__main__":
    command.run(node_check, "node_check", NodeSettings, __doc__)
