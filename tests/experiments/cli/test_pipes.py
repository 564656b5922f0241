"""Where the reader of its output has gone, a command ends as SIGPIPE ends one: without a traceback or a message."""

import os
import signal
import subprocess
import sys

import pytest

from experiments.cli.console import PACKAGE, ending_quietly

START = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); from experiments.cli.console import main; main()"


def cut_short(*arguments: str, stream: str = "stdout", program: str = START) -> tuple[int, str]:
    """Return the exit code of `fedmf`, one of whose streams is not read, and what it says on the other."""
    reading, writing = os.pipe()
    os.close(reading)
    other = {"stdout": "stderr", "stderr": "stdout"}[stream]
    streams = {stream: writing, other: subprocess.PIPE}
    done = subprocess.run([sys.executable, "-c", program, *arguments], **streams, timeout=120, check=False)
    os.close(writing)
    return done.returncode, getattr(done, other).decode()


@pytest.mark.parametrize(
    ("line", "stream"), [("--help", "stdout"), ("plan epsilon=2", "stdout"), ("nonsense", "stderr")]
)
def test_help_results_and_mistakes_that_are_not_read_end_by_sigpipe(line: str, stream: str) -> None:
    """`fedmf` prints the help itself; the result is a table of rich."""
    assert cut_short(*line.split(), stream=stream) == (-signal.SIGPIPE, "")


def test_a_pipe_of_the_programs_own_that_breaks_is_not_passed_over() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with pytest.raises(BrokenPipeError):
        ending_quietly(lambda: os.write(writing, b"x"))
    os.close(writing)
