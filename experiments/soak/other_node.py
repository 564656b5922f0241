"""A node with another executor: `SOAK_EXECUTOR=MODULE python -m experiments.soak.other_node`, with the arguments of `fedmf node`.

It is `fedmf node` for the rest: what it sends has its key's signature and reaches the server as any node's does. One such
executor lies (`soak.hostile_executor`), one notes what it is given (`soak.witness`).
"""

import os
import runpy
import subprocess
from collections.abc import Mapping
from typing import Any

from experiments.deployment import warm_node
from experiments.deployment.lifeline import start_module

OWN = "experiments.deployment.executor_process"
LIAR, WITNESS = "experiments.soak.hostile_executor", "experiments.soak.witness"
EXECUTOR = "SOAK_EXECUTOR"  # variable: the module that is run in place of its own


def main() -> None:
    """Run `fedmf node`, with the executor that the environment names in place of its own."""
    other = os.environ[EXECUTOR]

    def start_other(
        module: str, settings: Mapping[str, Any], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        return start_module(other if module == OWN else module, settings, environment)

    warm_node.start_module = start_other  # type: ignore[attr-defined]  # this process is nobody else's
    runpy.run_module("experiments.node", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
