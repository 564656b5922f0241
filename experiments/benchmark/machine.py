"""What machine and what software a benchmark ran on."""

import platform
from importlib.metadata import version
from pathlib import Path

from fedmf.mechanisms.compiled import available


def processor() -> str:
    """Return the name of the processor, or its architecture where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def software() -> str:
    """Return the versions that decide the times."""
    named = [f"{name} {version(name)}" for name in ("torch", "numpy", *(["numba"] * available()))]
    return f"Python {platform.python_version()}, {', '.join(named)}"
