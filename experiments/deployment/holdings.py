"""What a node would bring into a run, every client of it read once."""

from typing import Any

import numpy as np

from client.models import parameter_count
from experiments.deployment.node import Node, NodeSettings
from experiments.settings.client import build_model
from fedmf.errors import DataError


def examine(node: Node, settings: NodeSettings) -> dict[str, Any]:
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
        "parameters": parameter_count(build_model(settings.model, node.dataset, settings.seed)),
    }
