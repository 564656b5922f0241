"""The command `benchmark` in this process, as its command line has it."""

import pytest

from experiments.benchmark import __main__ as benchmark
from experiments.cli import command


def run_benchmark(capsys, *arguments):
    """Return exit code, stdout and stderr of the command."""
    with pytest.raises(SystemExit) as stop:
        command.run(
            benchmark.benchmark,
            "benchmark",
            benchmark.BenchmarkSettings,
            benchmark.__doc__,
            benchmark.in_full(arguments),
        )
    return stop.value.code, *capsys.readouterr()
