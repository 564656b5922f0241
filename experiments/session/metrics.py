"""A run's metrics besides accuracy and loss, found and tried before anything is written."""

import sys
from copy import deepcopy

from client.data import Examples
from client.metrics import NamedMetric, find_metrics
from client.scoring import SCORED_AT_ONCE, refuse_failures, score
from client.training import pick_device
from experiments.settings.experiment import Experiment
from experiments.settings.schema import Settings
from fedmf.accounting.caveats import CHOOSING


def tried_metrics(settings: Settings, experiment: Experiment) -> tuple[NamedMetric, ...]:
    """Return the metrics that the settings name, each of which gave a number, or nan, for the model before training.

    Raises `SettingError` for any other: a run must not find out at its first evaluation, its budget begun. What a
    function of the whole test split needs of memory it needs here for the first time.
    """
    metrics = find_metrics(settings.metrics, classes=experiment.dataset.classes)
    if not metrics:
        return ()
    test = experiment.dataset.test
    if all(metric.path is None for metric in metrics):  # one batch is enough for the project's own
        test = Examples(test.x[:SCORED_AT_ONCE], test.y[:SCORED_AT_ONCE])
    model = deepcopy(experiment.model).to(pick_device(experiment.training.device)).eval()
    tried = score(model, test, uncounted=experiment.dataset.uncounted, metrics=metrics)
    refuse_failures(tried, metrics, "the model before training")
    return metrics


def say_what_choosing_costs(settings: Settings) -> None:
    """Print what the statement of a run does not cover whose value goes to a sweep."""
    if settings.run.optimized_metric is not None:
        print(CHOOSING.format(metric=settings.run.optimized_metric), file=sys.stderr)
