"""One simulated run: all clients on this machine, the server in this process."""

from functools import partial
from pathlib import Path

from client.data.identity import digest_clients, refuse_changing_clients
from experiments.engines.engine import devices_of, engine_worker, shared_tasks
from experiments.engines.grid import run_locally
from experiments.run_files.directory import CONFIG, RunDirectory
from experiments.run_files.same_settings import refuse_other_settings
from experiments.session.progress import FailureCount, View
from experiments.session.resume import extended, recorded_parts
from experiments.session.session import Session, has_finished
from experiments.settings.data import print_notes
from experiments.settings.engine import DeploymentSettings, warn_of_many_workers
from experiments.settings.experiment import build
from experiments.settings.schema import Settings
from fedmf.errors import SettingError
from server.app import make_server_app
from server.cohort import SimulatedPopulation
from server.exchange import tasks_per_message


def simulate(settings: Settings, path: Path, job: str = "") -> bool:
    """Run what `settings` describe into the directory `path`, or resume the run in it.

    `job` names the job of a sweep. Returns False, with nothing changed, where the run is asked for again with run.resume and has finished before.
    Raises a `FedmfError` for what cannot run as asked; nothing is written then.
    """
    directory = RunDirectory(path)
    settings = recorded_parts(settings, path)
    if settings.run.extend is not None:
        settings = extended(settings, path)
    elif settings.sweep.resume:
        refuse_other_settings(path, settings)
    if settings.run.extend is None and has_finished(settings, directory):
        return False
    if isinstance(settings.engine, DeploymentSettings):
        raise SettingError(
            "engine is deployment, which `flwr run` starts (docs/deployment.md); choose local or ray."
        )
    if settings.run.resume and settings.run.directory is None and not (path / CONFIG).exists():
        raise SettingError("run.resume is true, but run.directory is null; name the run to go on with.")
    warn_of_many_workers(settings.engine)
    devices_of(settings)  # refuses one that is not there, before anything is built
    experiment = build(settings)
    print_notes(experiment.dataset)
    refuse_changing_clients(experiment.dataset.clients)
    failures = FailureCount(stops=settings.run.stop_if_all_fail)
    view = View(experiment.plan.participation.rounds, job)
    session = Session(
        settings,
        directory,
        experiment,
        identify=partial(digest_clients, experiment.dataset.clients),
        failures=failures,
        view=view,
    )
    try:
        with engine_worker(settings, experiment) as worker:
            session.run(
                lambda folder: SimulatedPopulation(),
                lambda strategy: run_locally(make_server_app(lambda context: strategy), worker, failures.add),
                shared_tasks(settings, tasks_per_message(experiment.plan)),
            )
    finally:
        failures.print_total()
    return True
