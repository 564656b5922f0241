"""What a node would bring into a run, every client of it read once."""

from typing import Any

from client.data.dataset import NEXT_TOKEN
from client.models import parameter_count
from experiments.deployment.node import Node, NodeSettings
from experiments.settings.client import build_model
from fedmf.errors import DataError

UNGIVEN = "logistic"
"""The model of node_check where nobody gives one; texts cannot be trained on with it."""


def examine(node: Node, settings: NodeSettings) -> dict[str, Any]:
    """Return what `node` holds, every client of it read once. Raises `DataError` for data that would be zeroed.

    The parameters of the model are not counted where none is given for texts.
    """
    held = len(node.dataset.clients) - node.first
    if held < node.clients:
        raise DataError(
            f"clients is {node.clients}, but from first={node.first} on the data set holds {max(held, 0)}; "
            "what is declared and not there takes part with zero updates."
        )
    sizes = []
    for number in range(node.clients):
        sizes.append(len(node.examples_of(f":{number}")))  # which looks at all their values
    counted = {}
    if node.dataset.task != NEXT_TOKEN or settings.model.name != UNGIVEN:
        counted["parameters"] = parameter_count(build_model(settings.model, node.dataset, settings.seed))
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
        **counted,
    }
