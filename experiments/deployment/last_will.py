"""What becomes of a deployment on this machine when its starter cannot end it: `python -m experiments.deployment.last_will`.

`Loopback` ends its parts and removes their keys and the database, also after Ctrl-C, SIGTERM and SIGHUP. A starter that is killed
with SIGKILL does neither. This process waits for the end of the starter, however that comes, and then kills every
process whose Flower home lies in the folder, one that is stopped too, and removes the folder. It asks nobody to end: what a
part would still do is of no use any more.
"""

import shutil
import signal
import subprocess
from pathlib import Path

import experiments  # noqa: F401  the environment
from experiments.deployment.killing import kill_at, still_there
from experiments.deployment.lifeline import start_module, told, wait_for_starter
from experiments.settings.log import messages

_MODULE = "experiments.deployment.last_will"


def start(folder: Path) -> subprocess.Popen[bytes]:
    """Start the process for the deployment in `folder`, to be called by the main thread; it ends when its pipe is closed."""
    return start_module(_MODULE, {"folder": str(folder)})


def execute(folder: Path) -> None:
    """Kill every process whose Flower home lies in `folder`, unmount what is mounted there, and remove it.

    Keys and database are removed also where a process stays that no signal ends.
    """
    if left := kill_at(folder.glob("*.home")):
        messages.warning(f"{still_there(left)}.")
    for mount in _mounts_in(folder):
        subprocess.run(["umount", "--lazy", mount], capture_output=True, check=False)
    shutil.rmtree(folder, ignore_errors=True)


def _mounts_in(folder: Path) -> list[str]:
    """Return what is mounted below `folder`, whose path has no blanks: the file system of a soak (Linux)."""
    table = Path("/proc/mounts")
    lines = table.read_text().splitlines() if table.exists() else []
    return [line.split()[1] for line in lines if line.split()[1].startswith(f"{folder}/")]


def main() -> None:
    """Wait for the end of the starter, then leave nothing of its deployment."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are for the starter, whose end is what counts
    folder = Path(told(0)["folder"])
    wait_for_starter()
    execute(folder)


if __name__ == "__main__":
    main()
