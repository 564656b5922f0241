"""The console command: `fedmf NAME ...` is `python -m experiments.NAME ...` in any folder; how the process of a command ends.

`python -m` looks for modules in the current directory first: a folder called experiments/ or server/ hides ours, and a file
called as a package that some library would like to import is run. Here the current directory is not on the path, in no
process that the command starts; `client.imports` looks there for a module that the user named, while it is imported.
"""

import os
import runpy
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from experiments import leave_quietly

PACKAGE = Path(__file__).resolve().parents[1]
USER_MISTAKE, STOPPED = 2, 1
USAGE = """\
Usage: fedmf COMMAND [key=value ...]

Federated learning with user-level differential privacy.

  simulate      train a model, with all clients on this machine
  plan          compute what a run costs before it runs
  mechanisms    compare noise mechanisms
  evaluate      score a finished run's model
  runs          list the runs below a folder
  compare       compare the runs below a folder
  report        write a run's page and plots again
  export        write a run's model for other programs
  audit         attack the pipeline to test its privacy
  datasets      list datasets and models
  data          `data import SOURCE OUT`: convert data files to arrays
  vocabulary    make a vocabulary of public words
  deploy_demo   run a deployment on this machine
  node_check    test whether a node's data load
  --version     print the version

`fedmf COMMAND --help` prints a command's settings.
"""


def main() -> None:
    """Run the command that the first argument names, or answer --help and --version.

    Exits 2 where there is no such command, with the help on stderr where none is named.
    """
    leave_quietly()
    _look_elsewhere(sys.path)
    ending_quietly(_answer)


def _answer() -> int:
    """Do what the arguments ask for and return the exit code; a command exits by itself."""
    from experiments.settings.reference import SETTINGS

    match sys.argv[1:]:
        case ["-h" | "--help" | "help", *_]:
            print(USAGE, end="")
        case ["-V" | "--version", *_]:
            from importlib.metadata import version

            print(f"fedmf {version('fedmf')}")
        case [name, *arguments] if name in (*SETTINGS, "data"):
            sys.argv = [f"{sys.argv[0]} {name}", *arguments]
            runpy.run_module(f"experiments.{name}", run_name="__main__")
        case [name, *_]:
            sys.stderr.write(f"error: {name!r} is no command of fedmf; `fedmf --help` lists all of them.\n")
            return USER_MISTAKE
        case _:
            sys.stderr.write(USAGE)
            return USER_MISTAKE
    return 0


def _look_elsewhere(path: list[str]) -> None:
    """Take the current directory from `path`, unless PYTHONPATH names it, and put the directory of our packages there.

    An editable install finds our packages only after everything on `path`: they must be on it themselves, or what
    PYTHONPATH names would hide them.
    """
    os.environ["PYTHONSAFEPATH"] = "1"  # for processes that libraries start by `python -c` or `-m`
    here = os.path.abspath("")
    asked = here in map(os.path.abspath, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    path[:] = [entry for entry in path if os.path.abspath(entry) != here]
    wanted = (str(PACKAGE.parent), here) if asked else (str(PACKAGE.parent),)
    path += [entry for entry in wanted if entry not in path]


def ending_quietly(action: Callable[[], int]) -> NoReturn:
    """Exit with the code that `action` returns, once all that it printed is written.

    Where the reader of stdout or stderr has gone, as in `fedmf plan ... | head`, the process ends by SIGPIPE, as other
    programs do. Any other pipe that breaks is a defect, whose error is raised.
    """
    try:
        try:
            code = action()
        finally:
            sys.stdout.flush()  # here and not when Python ends, which would print that it cannot
    except BrokenPipeError:
        poll = select.poll()
        for stream in (1, 2):
            poll.register(stream, 0)  # errors are reported without being asked for
        if not any(event & select.POLLERR for _, event in poll.poll(0)):
            raise
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)
    sys.exit(code)
