"""Where nobody reads on, a command ends as SIGPIPE ends one: without a traceback and without a word."""

import os
import signal
import subprocess
import sys

import pytest

from experiments.cli.console import PACKAGE
from experiments.cli.pipes import ending_quietly

START = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); from experiments.cli.console import main; main()"


def cut_short(*arguments: str, stream: str = "stdout", program: str = START) -> tuple[int, str]:
    """Return the exit code of `fedmf` and what it says on the other stream when nobody reads one of them."""
    reading, writing = os.pipe()
    os.close(reading)
    other = {"stdout": "stderr", "stderr": "stdout"}[stream]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        **{stream: writing, other: subprocess.PIPE},
        timeout=120,
        check=False,
    )
    os.close(writing)
    return done.returncode, getattr(done, other).decode()


@pytest.mark.parametrize("line", ["--help", "plan --help", "plan epsilon=2", "plan epsilon=2 output=json"])
def test_help_and_results_that_nobody_reads_end_by_sigpipe(line: str) -> None:
    """`fedmf` prints the help of every command itself; of the results one is a table of rich and one is JSON."""
    assert cut_short(*line.split()) == (-signal.SIGPIPE, "")


def test_a_mistake_that_nobody_reads_ends_by_sigpipe() -> None:
    assert cut_short("nonsense", stream="stderr") == (-signal.SIGPIPE, "")


def test_a_module_that_nobody_reads_ends_by_sigpipe_too() -> None:
    module = f"import runpy, sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); runpy.run_module('experiments.plan', run_name='__main__')"
    assert cut_short("epsilon=2", "output=json", program=module) == (
        -signal.SIGPIPE,
        "",
    )


def test_rich_that_makes_an_exit_of_a_broken_pipe_ends_by_sigpipe() -> None:
    printing = "from rich.console import Console; Console(stderr=True).print('a line')"
    program = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); from experiments.cli.pipes import ending_quietly; "
    program += f"ending_quietly(lambda: exec({printing!r}))"
    assert cut_short(stream="stderr", program=program) == (-signal.SIGPIPE, "")


def test_a_mistake_has_its_exit_code_though_nobody_reads_stdout() -> None:
    code, said = cut_short("plan", "epsilo=2")
    assert code == 2
    assert "did you mean epsilon?" in said


def test_a_pipe_of_the_programs_own_that_breaks_is_not_passed_over() -> None:
    def break_one() -> int:
        reading, writing = os.pipe()
        os.close(reading)
        try:
            os.write(writing, b"x")
        finally:
            os.close(writing)
        return 0

    with pytest.raises(BrokenPipeError):
        ending_quietly(break_one)


def test_exit_codes_pass_as_they_are() -> None:
    for code in (0, 1, 2):
        with pytest.raises(SystemExit) as end:
            ending_quietly(lambda code=code: code)
        assert end.value.code == code
        with pytest.raises(SystemExit) as end:
            ending_quietly(lambda code=code: sys.exit(code))
        assert end.value.code == code
