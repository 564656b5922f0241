"""Rounds of pfl: federated averaging with its Gaussian mechanism and its clipping, without rotation and masks.

What its documentation offers for speed is used: the users' datasets are made once, in memory, as tensors; one process;
no metrics in measured rounds; nothing is sent to a platform. Its batches are slices in the order of the data, cut once
and kept, where the bare loop draws an order for each client.
"""

from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from torch import Tensor, nn
from work import BATCH_SIZE, CLIENTS, L2_NORM, LEARNING_RATE, NOISE_MULTIPLIER, ROWS, Turns, build, main

_FOR_EVER = 1 << 30


class Classifier(nn.Module):
    """A model with its loss, as pfl wants it, that counts the examples it trains on."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.trained = 0

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.trained += len(x)
        return nn.functional.cross_entropy(self.network(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        # For pfl's evaluation, which takes place in the first round alone.
        with torch.no_grad():
            return {"loss": Weighted(nn.functional.cross_entropy(self.network(x), y).item(), 1)}


class Pauses(TrainingProcessCallback):  # type: ignore[misc]
    """Takes the time between rounds, and tells `turns` what `classifier` has trained."""

    def __init__(self, classifier: Classifier, turns: Turns) -> None:
        self._classifier, self._turns = classifier, turns

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        """Return whether training ends here, and no metrics."""
        trained, self._classifier.trained = self._classifier.trained, 0
        return not self._turns(trained), Metrics()


def run_rounds(turns: Turns) -> None:
    """Run rounds until no more are wanted."""
    classifier = Classifier(build(*ROWS[turns.row]))
    users = [Dataset([x, y]) for x, y in turns.clients]
    training = FederatedDataset(users.__getitem__, MinimizeReuseUserSampler(range(CLIENTS)))
    mechanism = GaussianMechanism(L2_NORM, NOISE_MULTIPLIER)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=_FOR_EVER,
            evaluation_frequency=_FOR_EVER,
            train_cohort_size=CLIENTS,
            val_cohort_size=None,
        ),
        SimulatedBackend(training, None, postprocessors=[CentrallyAppliedPrivacyMechanism(mechanism)]),
        PyTorchModel(
            classifier,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(classifier.parameters(), lr=1.0, momentum=0.9),
        ),
        NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=LEARNING_RATE, local_batch_size=BATCH_SIZE
        ),
        callbacks=[Pauses(classifier, turns)],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main(run_rounds)
