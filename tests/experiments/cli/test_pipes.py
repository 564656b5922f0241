"""Where the reader of its output has gone, a command ends as SIGPIPE ends one: without a traceback or a message."""

import os
import signal
import subprocess
import sys

import pytest

from experiments.cli.console import PACKAGE, ending_quietly

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


def test_a_mistake_that_nobody_reads_ends_by_sigpipe_and_else_has_its_exit_code() -> None:
    assert cut_short("nonsense", stream="stderr") == (-signal.SIGPIPE, "")
    code, said = cut_short("plan", "epsilo=2")
    assert code == 2
    assert "did you mean epsilon?" in said


def test_rich_that_makes_an_exit_of_a_broken_pipe_ends_by_sigpipe() -> None:
    printing = "from rich.console import Console; Console(stderr=True).print('a line')"
    program = START.replace(
        "import main; main()", f"import ending_quietly; ending_quietly(lambda: exec({printing!r}))"
    )
    assert cut_short(stream="stderr", program=program) == (-signal.SIGPIPE, "")


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
    for action in (lambda: 2, lambda: sys.exit(2)):
        with pytest.raises(SystemExit) as end:
            ending_quietly(action)
        assert end.value.code == 2
