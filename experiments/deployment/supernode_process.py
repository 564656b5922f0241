"""The process of a SuperNode, which `fedmf node` starts: `python -m experiments.deployment.supernode_process`."""

import os

import experiments  # noqa: F401  the environment, before Flower reads it
from experiments.deployment.lifeline import told, watch

GRACE = 8.0  # seconds for a SuperNode whose starter has ended to take its leave of the SuperLink


def main() -> None:
    """Run the SuperNode that the starter describes, once it can reach the SuperLink, until the starter ends."""
    settings = told(0)  # no signal of the kernel's: a second SIGTERM would cut short what the first one began
    watch(GRACE)
    from experiments.deployment.apps import show_logs
    from experiments.deployment.flower_parts import run_supernode
    from experiments.deployment.reaching import SESSION, Way, wait_until_reached

    show_logs()
    wait_until_reached(Way(**settings["way"]))
    run_supernode(settings["arguments"], bytes.fromhex(settings["secret"]), settings["pause"], SESSION)


if __name__ == "__main__":
    os.umask(0o077)
    main()
