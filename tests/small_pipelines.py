"""A pipeline under audit that takes milliseconds: 12 clients in rounds of three, two epochs."""

import torch

from client.settings import TrainingSettings
from experiments.audit.pipeline import Pipeline
from plans import small_plan


def small_pipeline(*given, dimension=6, keep_probability=0.5, kind=None, **options):
    """Return `Pipeline(plan, model, settings, *given, **options)` for a linear model of so many weights, all 0.

    `kind`: more of the plan, such as its rotation.
    """
    plan = small_plan(
        dimension=dimension,
        **{"rotation": "identity", "linf_norm": 0.5, "delta": 0.01, "keep_probability": keep_probability}
        | (kind or {}),
    )
    model = torch.nn.Linear(dimension, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    return Pipeline(plan, model, TrainingSettings(0.1, device="cpu"), *given, **options)
