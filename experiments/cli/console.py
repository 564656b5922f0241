"""The console command: `fedmf NAME ...` is `python -m experiments.NAME ...` in any folder.

`python -m` looks for packages in the current directory first, so that a folder of the user's own called
experiments/ or server/ hides ours. Here the current directory comes last: ours are found, and so is a user's own
`dataset.name=mine:load`. Worker processes inherit that order from `sys.path`.
"""

import ast
import os
import re
import sys
from collections.abc import Collection, Mapping
from importlib.abc import InspectLoader
from importlib.util import find_spec, module_from_spec
from pathlib import Path

from experiments import leave_quietly

PACKAGE = Path(__file__).resolve().parents[1]
USER_MISTAKE = 2
USAGE = """\
Usage: fedmf COMMAND [key=value ...]

Federated learning with user-level differential privacy.

Commands:
{commands}

Options:
  --help             this list; `fedmf COMMAND --help` prints the settings of a command
  --version          the version
  --completion bash  a script: eval "$(fedmf --completion bash)" makes <TAB> complete commands and settings
"""


def main() -> None:
    """Run the command that the first argument names, or answer an option of `fedmf` itself.

    Exits 2 where there is no such command, with the help on stderr where none is named.
    """
    leave_quietly()
    _look_here_last(sys.path)
    commands = find_commands(PACKAGE)
    match sys.argv[1:]:
        case []:
            sys.stderr.write(usage(commands))
            sys.exit(USER_MISTAKE)
        case ["-h" | "--help" | "help", *_]:
            print(usage(commands), end="")
        case ["-V" | "--version", *_]:
            print(f"fedmf {_version()}")
        case ["--completion", *shells]:
            _print_completion(shells)
        case ["-sc", "query=bash"]:  # asked by our script, and by the one that Hydra makes
            _print_choices(commands)
        case [name, *_] if name in commands:
            _run(name)
        case [name, *_]:
            _refuse(_no_command(name, commands))


def find_commands(package: Path) -> Mapping[str, Path]:
    """Return the source file of every command of `package` by name, without importing any.

    A command is a package with a __main__.py, or a module that says what to do when it is `__main__`.
    """
    packages = {file.parent.name: file for file in package.glob("*/__main__.py")}
    modules = {
        file.stem: file
        for file in package.glob("*.py")
        if 'if __name__ == "__main__":' in file.read_text(encoding="utf-8")
    }
    return dict(sorted({**packages, **modules}.items()))


def usage(commands: Mapping[str, Path]) -> str:
    """Return the help text: every command with the first sentence of its module's docstring."""
    width = max(map(len, commands))
    lines = [f"  {name:<{width}}  {_purpose(file)}" for name, file in commands.items()]
    return USAGE.format(commands="\n".join(lines))


def _purpose(file: Path) -> str:
    """Return the first paragraph of a module's docstring on one line, without an example of its use."""
    doc = ast.get_docstring(ast.parse(file.read_bytes())) or ""
    sentence = " ".join(doc.partition("\n\n")[0].split())
    return re.sub(r":( `make [\w-]+`, or)? `(python -m experiments\.|fedmf )[^`]*`", "", sentence)


def _look_here_last(path: list[str]) -> None:
    """Put the directory of our packages and after it the current one at the end of `path`.

    An editable install finds our packages only after everything on `path`: they must be on it themselves, or the
    current directory would hide them.
    """
    here = os.getcwd()
    path[:] = [entry for entry in path if entry not in ("", here)]
    path += [entry for entry in (str(PACKAGE.parent), here) if entry not in path]


def _run(name: str) -> None:
    """Execute a command as `__main__`, where worker processes look for it, and as `fedmf NAME` in its messages."""
    spec = find_spec(f"experiments.{name}")
    if spec is not None and spec.submodule_search_locations is not None:
        spec = find_spec(f"{spec.name}.__main__")
    assert spec is not None
    assert isinstance(spec.loader, InspectLoader)
    module = module_from_spec(spec)
    module.__name__ = "__main__"
    sys.modules["__main__"] = module
    sys.argv = [f"{sys.argv[0]} {name}", *sys.argv[2:]]
    exec(spec.loader.get_code(spec.name) or "", vars(module))


def _print_completion(shells: Collection[str]) -> None:
    from experiments.cli.completion import BASH

    if list(shells) != ["bash"]:
        _refuse(f"--completion is {' '.join(shells) or 'without a shell'}; it must be bash.")
    print(BASH)


def _print_choices(commands: Collection[str]) -> None:
    from experiments.cli.completion import complete

    print(" ".join(complete(os.environ.get("COMP_LINE", ""), commands)))


def _no_command(name: str, commands: Collection[str]) -> str:
    """Return the sentence about a name that is no command, with the nearest one that is."""
    from difflib import get_close_matches

    near = get_close_matches(name, commands, n=1)
    advice = f"did you mean {near[0]}?" if near else "`fedmf --help` lists them."
    return f"{name!r} is no command of fedmf; {advice}"


def _refuse(sentence: str) -> None:
    sys.stderr.write(f"error: {sentence}\n")
    sys.exit(USER_MISTAKE)


def _version() -> str:
    from importlib.metadata import version

    return version("fedmf")
