"""Which processes belong to a part of a deployment, as /proc shows them (Linux; elsewhere none are found)."""

import contextlib
from pathlib import Path

_RUNS = "experiments.deployment.run_executor_process"


def processes_at(home: Path) -> list[int]:
    """Return the processes of this user whose Flower home is `home`."""
    marker, found = f"FLWR_HOME={home}".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if marker in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def plays_a_run(number: int) -> bool:
    """Say whether a process plays a run: a fork of the executor of runs."""
    return is_fork_of(number, _RUNS)


def is_fork_of(number: int, module: str) -> bool:
    """Say whether a process was forked by `python -m MODULE`, whose command line it has."""
    try:
        parent = int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])
        lines = [Path(f"/proc/{one}/cmdline").read_bytes().split(b"\0") for one in (number, parent)]
    except OSError:  # it has ended
        return False
    return all(module.encode() in line for line in lines)
