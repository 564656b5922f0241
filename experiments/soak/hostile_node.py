"""A node that lies: `python -m experiments.soak.hostile_node`, with the arguments of `fedmf node`.

It is `fedmf node` with another executor: what it sends has its key's signature, reaches the server as any node's does, and holds
something else than the server asked for.
"""

import runpy
import subprocess
from collections.abc import Mapping
from typing import Any

from experiments.deployment import warm_node
from experiments.deployment.lifeline import start_module

EXECUTOR, LIAR = "experiments.deployment.executor_process", "experiments.soak.hostile_executor"


def main() -> None:
    """Run `fedmf node`, with the executor that lies in place of its own."""

    def start_lying(
        module: str, settings: Mapping[str, Any], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        return start_module(LIAR if module == EXECUTOR else module, settings, environment)

    warm_node.start_module = start_lying  # type: ignore[attr-defined]  # this process is nobody else's
    runpy.run_module("experiments.node", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
