"""Tell the operator of a node whether its data load, before any run: `python -m experiments.node_check ...`.

Takes the overrides of the SuperNode's --node-config, for example
    python -m experiments.node_check clients=479 dataset=by_user_npz dataset.path=/srv/people.npz
Exits 2 with one sentence where the data cannot be loaded or hold fewer clients than declared. With `model=...`
it counts the parameters, which must be those of the server.
"""

from typing import Any

import numpy as np
from omegaconf import DictConfig
from rich.table import Table

from client.models import parameter_count
from experiments.cli import command
from experiments.deployment.node import Node, NodeConfig
from experiments.settings import data
from experiments.settings.client import build_model
from experiments.settings.data import Output
from fedmf.errors import DataError


def node_check(config: DictConfig) -> None:
    """Print what this node would bring into a run."""
    found = examine(Node.of(config), config)
    if config.output is Output.json:
        command.print_json(found)
        return
    table = Table(title="This node's data load", show_header=False)
    for name, value in found.items():
        table.add_row(name.replace("_", " "), f"{value}")
    command.console().print(table)


def examine(node: Node, config: DictConfig) -> dict[str, Any]:
    """Return what `node` holds, every client of it read once. Raises `DataError` for data that would be zeroed."""
    held = len(node.dataset.clients) - node.first
    if held < node.clients:
        raise DataError(
            f"clients is {node.clients}, but from first={node.first} on the data set holds {max(held, 0)}; "
            "what is declared and not there takes part with zero updates."
        )
    sizes = []
    for number in range(node.clients):
        examples = node.examples_of(f":{number}")
        if not np.isfinite(examples.x).all():
            raise DataError(f"client number {number} of this node holds inputs that are not finite.")
        sizes.append(len(examples))
    return {
        "dataset": node.dataset.name,
        "unit": node.dataset.unit,
        "clients": node.clients,
        "clients_in_the_data_set": len(node.dataset.clients),
        "examples": sum(sizes),
        "examples_of_the_smallest_client": min(sizes),
        "examples_of_the_largest_client": max(sizes),
        "input_shape": list(node.dataset.input_shape),
        "classes": node.dataset.classes,
        "parameters": parameter_count(build_model(config, node.dataset)),
    }


if __name__ == "__main__":
    data.register()
    command.run(node_check, "node_check", NodeConfig, __doc__)
