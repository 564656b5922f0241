"""The command `benchmark` in this process, as its command line calls it."""

import pytest

from experiments.benchmark import __main__ as benchmark
from experiments.reproduce import command_line


def run_benchmark(capsys, *arguments):
    """Return exit code, stdout and stderr of the command."""
    with pytest.raises(SystemExit) as stop:
        command_line.run(benchmark.benchmark, benchmark.BenchmarkSettings, benchmark.__doc__, arguments)
    return stop.value.code, *capsys.readouterr()
