"""Ends where nobody reads on, as in `fedmf plan ... | head`: by SIGPIPE, as other programs do, and without a word."""

import os
import select
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

STREAMS = (1, 2)


def ending_quietly(action: Callable[[], int]) -> NoReturn:
    """Exit with the code that `action` returns, once all that it printed is written.

    The process ends by SIGPIPE if that fails for want of a reader. A pipe of its own that breaks is a defect.
    """
    try:
        try:
            code = action()
        except SystemExit as end:
            if isinstance(end.__context__, BrokenPipeError):  # rich makes an exit of it
                raise BrokenPipeError from end
            sys.stdout.flush()
            raise
        sys.stdout.flush()  # here and not when Python ends, which would print that it cannot
    except BrokenPipeError:
        if not reader_left():
            raise
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)
    sys.exit(code)


def reader_left() -> bool:
    """Say whether stdout or stderr is a pipe that nobody reads any more."""
    poll = select.poll()
    for stream in STREAMS:
        poll.register(stream, 0)  # errors are told without being asked for
    return any(event & select.POLLERR for _, event in poll.poll(0))
