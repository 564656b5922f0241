"""A plan from a run's own settings: `plan model=cnn dataset=synthetic privacy.epsilon=2`. Nothing is trained or written."""

import logging

from experiments.plan.budget import Budget, Planned
from experiments.plan.figures import errors_of
from experiments.settings.experiment import build
from experiments.settings.keys import keyed
from experiments.settings.schema import Settings
from fedmf.accounting import Ledger
from fedmf.accounting.caveats import NOT_COVERED
from fedmf.outlook import noise_of_run

_log = logging.getLogger(__name__)


@keyed("privacy", ("max_epsilon",))
def from_run(settings: Settings) -> Planned:
    """Return the plan of the run that `settings` describe, of as many epochs as its max_epsilon lets begin.

    Reads the data set, for its clients and shapes, and builds the model. Raises a `FedmfError` for what cannot run as
    asked.
    """
    _log.info("planning a run on %s: its data set is read, nothing is trained", settings.dataset.name)
    experiment = build(settings)
    plan, dataset = experiment.plan, experiment.dataset
    plan.start_epoch(Ledger())
    epochs = plan.affordable_epochs
    return Planned(
        budget=Budget(
            plan.linf_over_l2,
            epochs,
            plan.privacy.delta,
            plan.privacy.adjacency,
            plan.privacy.accountant,
            plan.privacy.geometry,
            (plan.counted_radius or 1.0) / (plan.bounds.radius or 1.0),
            plan.floating_point,
        ),
        event=plan.epoch_event,
        target=plan.privacy.epsilon,
        mechanism=settings.mechanism.name,
        workload=settings.workload,
        cohort_size=plan.participation.cohort_size,
        padded=plan.rotation.padded,
        value_type=plan.compression.value_type,
        noise=errors_of(plan.factorization, epochs * plan.participation.rounds_per_epoch),
        noise_over_signal=noise_of_run(plan),
        unit=dataset.unit,
        not_covered=(*NOT_COVERED, *dataset.uncovered),
        orders=None,
        feasible=True,
        comparable=plan.bounds.radius is not None,
        warnings=experiment.misgivings,
    )
