"""What a node would bring into a run, every client of it read once."""

from typing import Any

from client.data.dataset import NEXT_TOKEN
from client.models import parameter_count
from experiments.deployment.node import Node, NodeSettings
from experiments.settings.experiment import build_model
from fedmf.errors import DataError
from fedmf.updates.rotation import padded_dimension
from server.exchange import LEAST_MESSAGE

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
        parameters = parameter_count(build_model(settings.model, node.dataset, settings.seed))
        counted = {"parameters": parameters, "largest_request_bytes": largest_request(parameters)}
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


def largest_request(parameters: int) -> int:
    """Return the bytes of the largest request that an honest node sends in runs of a model of `parameters` parameters.

    That is a reply. Clients of one node share one while their expected values are no more than the larger of 4 MiB and
    the padded model in float32 (`server.exchange.tasks_per_message`); one client's values are never more than that
    model. A sixteenth is for how many coordinates were kept at random, 2 MiB for what stands beside the values of 10,000
    clients and for requests that hold no values.
    """
    values = max(LEAST_MESSAGE, 4 * padded_dimension(parameters, "hadamard"))
    return values + values // 16 + (2 << 20)
