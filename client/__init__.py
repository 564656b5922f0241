"""The Flower client: training on one resident model, and what is done to an update before it leaves.

Data sets are in `client.data` (`load`), models in `client.models` (`build`). A name is imported when it is first
used: only `Metric`, `Trainer`, `flat_parameters`, `layout_of`, `with_adapters` and the app need torch.
"""

from typing import TYPE_CHECKING

from fedmf.lazy import lazily

if TYPE_CHECKING:
    from client.adapters import with_adapters
    from client.app import make_client_app
    from client.data import Dataset, Examples
    from client.metrics import Metric
    from client.parameters import flat_parameters, layout_of
    from client.rehearsal import rehearse
    from client.settings import DEVICES, TrainingSettings
    from client.training import Trainer
else:
    __getattr__ = lazily(
        __name__,
        {
            "client.adapters": ["with_adapters"],
            "client.app": ["make_client_app"],
            "client.data": ["Dataset", "Examples"],
            "client.parameters": ["flat_parameters", "layout_of"],
            "client.metrics": ["Metric"],
            "client.rehearsal": ["rehearse"],
            "client.settings": ["DEVICES", "TrainingSettings"],
            "client.training": ["Trainer"],
        },
    )

__all__ = [
    "DEVICES",
    "Dataset",
    "Examples",
    "Metric",
    "Trainer",
    "TrainingSettings",
    "flat_parameters",
    "layout_of",
    "make_client_app",
    "rehearse",
    "with_adapters",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
