"""Test whether a node's data load, before any run: `python -m experiments.node_check ...`.

    python -m experiments.node_check clients=479 dataset=by_user_npz dataset.path=/srv/people.npz 'public={shape:[8,8],classes:10}'

A node reads no test set: `public` is what the server found in its own test set and logged. Exits with 2 and one sentence if the data
cannot be loaded, contain fewer clients than declared, or contain a client whose values cannot be trained on. With `model=...` it
prints the number of parameters, which must equal the server's.

`ready=FILE` is for the unit or container that starts a node. It loads the dataset as a whole, without any client's values, writes
FILE only if that succeeds, and exits with 0. A node that is not ready must start and report it: if it stayed away because of one
client's values, that client would decide who participates. A wrong setting is independent of the data and exits with 2 here too.
"""

from pathlib import Path

from experiments.cli import command, output
from experiments.deployment.node import Node, NodeSettings, examine, public_of, readiness
from experiments.settings.data import arguments, check_dataset
from server.files import write_atomically


def node_check(settings: NodeSettings) -> None:
    """Print what this node would bring into a run; with `ready` make that file if the node is ready, remove it if not, and say why."""
    if settings.ready is None:
        found = examine(Node(settings))
        rows = [(name.replace("_", " "), f"{value}") for name, value in found.items()]
        output.show(settings.output, found, lambda: output.print_table("This node's data load", {}, rows))
        return
    # With a mistake in the settings the node could not train either. No data are read for this.
    check_dataset(arguments(settings.dataset), settings.model.name)
    public_of(settings)
    file = Path(settings.ready)
    file.unlink(missing_ok=True)
    why = readiness(Node(settings))
    if not why:
        write_atomically(file, b"")
    text = (
        f"This node is not ready: {why}. It starts nevertheless, and says so."
        if why
        else "This node is ready."
    )
    output.show(settings.output, {"ready": not why, "why": why}, lambda: print(text))


if __name__ == "__main__":
    command.run(node_check, "node_check", NodeSettings, __doc__)
