"""A Flower client app that trains as the bare loop does; a file of its own, so that Ray's worker imports it once.

Imported once, it keeps its model and its data from message to message.
"""

import os
from functools import cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from work import ROWS, build, cohort, train as train_locally

ROW = "FEDMF_BENCHMARK_ROW"  # the environment variable with the row

app = ClientApp()


@cache
def _resident() -> tuple[nn.Module, list[tuple[torch.Tensor, torch.Tensor]]]:
    torch.set_num_threads(1)
    model, classes = ROWS[os.environ[ROW]]
    return build(model, classes), [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in cohort(classes)]


@app.train()
def train(message: Message, context: Context) -> Message:
    """Return the model trained for one epoch on the examples of the client."""
    model, clients = _resident()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    x, y = clients[int(context.node_config["partition-id"])]
    train_locally(model, x, y)
    metrics = MetricRecord({"num-examples": len(x)})
    reply = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=reply, reply_to=message)
