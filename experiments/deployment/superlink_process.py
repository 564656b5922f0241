"""The process of a SuperLink, which `fedmf server` starts: `python -m experiments.deployment.superlink_process`."""

import os

import experiments  # noqa: F401  the environment, before Flower reads it
from experiments.deployment.lifeline import told, watch

GRACE = 8.0  # seconds for a SuperLink whose starter has ended to answer what it was asked


def main() -> None:
    """Run the SuperLink that the starter describes, until the starter ends."""
    settings = told(0)  # no signal of the kernel's: a second SIGTERM would cut short what the first one began
    watch(GRACE)
    from experiments.deployment.flower_parts import run_superlink

    run_superlink(settings["arguments"], bytes.fromhex(settings["secret"]))


if __name__ == "__main__":
    os.umask(0o077)
    main()
