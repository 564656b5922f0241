"""Tell the operator of a node whether its data load, before any run: `python -m experiments.node_check ...`.

    python -m experiments.node_check clients=479 dataset=by_user_npz dataset.path=/srv/people.npz 'public={shape:[8,8],classes:10}'

A node reads no test set: `public` is what the server found in its own, and logs. Exits 2 with one sentence where the data cannot be loaded
or hold fewer clients than declared, or one client's values cannot be trained on. With `model=...` it counts the parameters,
which must be those of the server.

`ready=FILE` is for what starts a node (unit, container): it looks at the dataset as a whole and at no client's values, leaves
FILE only where that loads, and exits 0. A node that is not ready has to start and say so: one that stayed away for one client's
values would let that client decide who takes part. A mistake in the settings, which no data decide, exits 2 here as it does there.
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
