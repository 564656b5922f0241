"""A Flower client app that trains as the bare loop does; a file of its own, so that Ray's worker imports it once.

Imported once, it keeps its model and its data from message to message.
"""

import os
from functools import cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from work import Work, read

WORK_FOLDER = "FEDMF_BENCHMARK_WORK"  # the environment variable that names the folder of the work

app = ClientApp()


@cache
def _resident() -> tuple[Work, nn.Module]:
    torch.set_num_threads(1)
    work = read(os.environ[WORK_FOLDER])
    return work, work.model()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Return the model trained for one epoch on the examples of the client."""
    work, model = _resident()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    client = int(context.node_config["partition-id"])
    trained = _epoch(model, work, client)
    reply = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": trained}),
        }
    )
    return Message(content=reply, reply_to=message)


def _epoch(model: nn.Module, work: Work, client: int) -> int:
    """Train `model` in place, and return on how many examples."""
    x, y = work.x[client], work.y[client]
    optimizer = torch.optim.SGD(model.parameters(), lr=work.settings["learning_rate"])
    trained = 0
    for batch in torch.split(torch.randperm(len(x)), work.settings["batch_size"]):
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(x[batch]), y[batch]))
        optimizer.step()
        trained += len(batch)
    return trained
