"""A node that notes what it is given, and may lie: `python -m chaos.node NOTES honest|lies ARGUMENT...`.

For the rest it is `flower-supernode ARGUMENT...` under the warm start, so that what it sends reaches the server as any
node's does.
"""

import json
import os
import sys
from pathlib import Path

from chaos.lies import lying
from chaos.witness import note_of
from experiments.deployment import apps, warm

# A lost node is noticed after twice its heartbeat interval: 10 seconds, the least that a SuperLink takes, for Flower's 30.
SUPERNODE = """
import flwr.common.constant as constant
constant.HEARTBEAT_DEFAULT_INTERVAL = 10
from flwr.supernode.cli.flower_supernode import flower_supernode
flower_supernode()
"""


def main(file, kind, *arguments):
    """Play a node's tasks, as its SuperNode asks for them."""
    honest, notes = apps.reply_to, os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(something):
        os.write(notes, json.dumps(something).encode() + b"\n")

    def noting(message, context):
        note(note_of(message, Path(apps.run_settings(context.run_config["overrides"]).run.directory)))
        return honest(message, context)

    if kind == "lies":
        apps.reply_to = lying(honest, note)
    else:
        apps.reply_to = noting
    return warm.main([warm.UNTIL_EOF, sys.executable, "-c", SUPERNODE, *arguments])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
