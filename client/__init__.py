"""The Flower client: training on one resident model, and what is done to an update before it leaves.

Datasets are in `client.data` (`load`), models in `client.models` (`build`). A name is imported when it is first
used: only `Metric`, `Trainer`, `flat_parameters`, `layout_of`, `with_adapters` and the app need torch.
"""

from typing import TYPE_CHECKING

from fedmf.lazy import lazily

if TYPE_CHECKING:  # the public names
    from client.app import make_client_app as make_client_app
    from client.data import Dataset as Dataset, Examples as Examples, from_arrays as from_arrays
    from client.metrics import Metric as Metric
    from client.models import with_adapters as with_adapters
    from client.parameters import flat_parameters as flat_parameters, layout_of as layout_of
    from client.rehearsal import rehearse as rehearse
    from client.settings import DEVICES as DEVICES, TrainingSettings as TrainingSettings
    from client.training import Trainer as Trainer
else:
    __getattr__, __dir__, __all__ = lazily(__name__, __file__)
