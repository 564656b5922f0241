"""Be a node of a deployment: `fedmf node config=/etc/fedmf/node.yaml`, or `fedmf node superlink=HOST:PORT ...`.

Starts Flower's SuperNode and an executor of ours beside it, which has imported everything and forks for each message
at a fifteenth of the CPU of a new process; starts again what ends, and ends both. The keys of the data are those of
node_check, which to run first; docs/deployment.md has an example. A mistake in the settings ends it at once (exit code 2);
data that cannot be loaded do not: the node starts, and tells the server that it is not ready.

The code installed here must be the run's own, file by file: a run with other code gets no work done, and the log says
which files differ. While the SuperLink cannot be reached, or refuses this node, the log says why and what to do, once, and the
node tries again until it works. It runs until SIGTERM or Ctrl-C (exit code 130).
"""

from collections.abc import Sequence
from functools import partial

from experiments.cli import command
from experiments.deployment.node import Node, node_settings
from experiments.deployment.supervisor import Supervisor
from experiments.deployment.warm_node import MEANINGS, NodeCommandSettings, check, data_overrides, starts
from experiments.settings import log as json_log
from experiments.settings.output import LogForm


def node(settings: NodeCommandSettings, overrides: str = "") -> None:
    """Keep the processes of a node running until a signal ends this one; `overrides` are those of its data, as typed."""
    if settings.log is LogForm.json:
        json_log.install()  # and in the processes that it starts
    check(settings)
    Node.of(node_settings(overrides)).refuse_mistakes()  # the text is what both processes are given
    with Supervisor(starts(settings, overrides), MEANINGS) as supervisor:
        supervisor.run()


def form(arguments: Sequence[str]) -> command.Form:
    """Return the command's settings and what is to be done with them and with the data's own overrides."""
    return command.Form(partial(node, overrides=data_overrides(arguments)), "node", NodeCommandSettings)


if __name__ == "__main__":
    command.run_form(form, "node", __doc__, reads_file=True)
