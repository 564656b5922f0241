"""Tell the operator of a node whether its data load, before any run: `python -m experiments.node_check ...`.

Takes the node's own file, `config=/etc/fedmf/node.yaml`, or the settings of its data, for example
    python -m experiments.node_check clients=479 dataset=by_user_npz dataset.path=/srv/people.npz
A test set that cannot be used is only mentioned: a node reads none. Exits 2 with one sentence where the data cannot be loaded
or hold fewer clients than declared, or one client's values cannot be trained on. With `model=...` it counts the parameters,
which must be those of the server.

`loads_only=true` is for what starts a node (unit, container): it looks at what the node itself looks at when it starts, the data set
as a whole and no client's values, and exits 0 whatever it finds there. A node that is not ready has to start and say so: one that
stayed away for one client's values would let that client decide who takes part. A mistake in the settings, which no data
decide, exits 2 here as it does there.
"""

from rich.table import Table

from experiments.cli import command, output
from experiments.deployment.holdings import examine
from experiments.deployment.node import Node, NodeSettings, readiness
from experiments.deployment.warm_node import OWN_KEYS
from experiments.settings.data import print_notes
from experiments.settings.log import messages
from experiments.settings.output import Output
from fedmf.errors import FedmfError


def node_check(settings: NodeSettings) -> None:
    """Print what this node would bring into a run, or with `loads_only` whether it is ready."""
    if settings.loads_only:
        print_readiness(settings)
        return
    found = examine(Node.of(settings), settings)
    try:  # also what is to be said of the texts, which test lines tell
        print_notes(Node.of(settings, clients_only=False).dataset)
    except FedmfError as error:
        messages.info(f"note: the test set, which a node does not need, cannot be used: {error}")
    if settings.output is Output.json:
        output.print_json(found)
        return
    table = Table(title="This node's data load", show_header=False)
    for name, value in found.items():
        table.add_row(name.replace("_", " "), f"{value}")
    output.console().print(table)


def print_readiness(settings: NodeSettings) -> None:
    """Print what the node is going to say of itself when it starts."""
    node = Node.of(settings)
    node.refuse_mistakes()  # with which the node would not start either
    why = readiness(node)
    if settings.output is Output.json:
        output.print_json({"ready": not why, "why": why})
    else:
        print(
            f"This node is not ready: {why}. It starts all the same, and says so."
            if why
            else "This node is ready."
        )


if __name__ == "__main__":
    command.run(node_check, "node_check", NodeSettings, __doc__, reads_file=True, besides=OWN_KEYS)
