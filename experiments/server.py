"""Be the server of a deployment: `fedmf server config=/etc/fedmf/server.yaml`.

Starts Flower's SuperLink, with TLS and keys of nodes on the loopback interface, and an executor of ours beside it, which has
imported everything and forks for each run; starts again what ends, and ends both. The proxy before it is for nodes,
`flwr run` is for the operator; docs/deployment.md has both.

A run's code must be the code installed here, file by file; another one ends at once, and flwr log says which files
differ. It runs until SIGTERM or Ctrl-C (exit code 130).
"""

from pathlib import Path

from experiments.cli import command
from experiments.deployment.noted import note
from experiments.deployment.supervisor import Supervisor
from experiments.deployment.warm_server import ServerCommandSettings, check, starts
from experiments.settings import log as json_log
from experiments.settings.output import LogForm


def server(settings: ServerCommandSettings) -> None:
    """Keep the processes of a server running until a signal ends this one."""
    if settings.log is LogForm.json:
        json_log.install()  # and in the processes that it starts
    check(settings)
    if settings.config is not None:
        note(Path(settings.config), settings.database, settings.home)
    with Supervisor(starts(settings)) as supervisor:
        supervisor.run()


if __name__ == "__main__":
    command.run(server, "server", ServerCommandSettings, __doc__, reads_file=True)
