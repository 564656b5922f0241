"""The console command: `fedmf NAME ...` is `python -m experiments.NAME ...` in any folder.

`python -m` looks for modules in the current directory first: a folder called experiments/ or server/ hides ours, and a file
called as a package that some library would like to import is run. Here the current directory is not on the path, in no
process that the command starts; `client.imports` looks there for a module that the user named, while it is imported.
"""

import ast
import os
import re
import sys
import textwrap
from collections.abc import Collection, Mapping, Sequence
from importlib.abc import InspectLoader
from importlib.util import find_spec, module_from_spec
from pathlib import Path

from experiments import leave_quietly
from experiments.cli.pipes import ending_quietly

PACKAGE = Path(__file__).resolve().parents[1]
USER_MISTAKE = 2
USAGE = """\
Usage: fedmf COMMAND [key=value ...]

Federated learning with user-level differential privacy.

Commands:
{commands}

Options:
  --help [COMMAND]   this list, or the settings of a command, as
                     `fedmf COMMAND --help [GROUP | KEY]`
  --version          the version
  --completion bash  a script: eval "$(fedmf --completion bash)" makes <TAB>
                     complete commands and settings
"""


def main() -> None:
    """Run the command that the first argument names, or answer an option of `fedmf` itself.

    Exits 2 where there is no such command, with the help on stderr where none is named.
    """
    leave_quietly()
    _look_elsewhere(sys.path)
    ending_quietly(_answer)


def _answer() -> int:
    """Do what the arguments ask for and return the exit code; a command exits by itself."""
    commands = find_commands(PACKAGE)
    match sys.argv[1:]:
        case []:
            return _fail(usage(commands))
        case ["-h" | "--help" | "help", name, *topics] if name in commands:
            return _help(name, commands[name], topics)
        case ["-h" | "--help" | "help"]:
            print(usage(commands), end="")
        case ["-h" | "--help" | "help", name, *_]:
            return _fail(f"error: {_no_command(name, commands)}\n")
        case ["-V" | "--version", *_]:
            print(f"fedmf {_version()}")
        case ["--completion", *shells]:
            return _print_completion(shells)
        case ["-sc", "query=bash"]:  # asked by our script, and by the one that Hydra makes
            _print_choices(commands)
        case [name, *arguments] if name in commands and {"-h", "--help"} & set(arguments):
            return _help(name, commands[name], arguments)
        case [name, *_] if name in commands:
            _run(name)
        case [name, *_]:
            return _fail(f"error: {_no_command(name, commands)}\n")
    return 0


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
    lines = [
        textwrap.fill(f"  {name:<{width}}  {_purpose(file)}", 80, subsequent_indent=" " * (width + 4))
        for name, file in commands.items()
    ]
    return USAGE.format(commands="\n".join(lines))


def _purpose(file: Path) -> str:
    """Return the first paragraph of a module's docstring on one line, without an example of its use."""
    doc = ast.get_docstring(ast.parse(file.read_bytes())) or ""
    sentence = " ".join(doc.partition("\n\n")[0].split())
    return re.sub(r":( `make [\w-]+`, or)? `(python -m experiments\.|fedmf )[^`]*`", "", sentence)


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


def _help(name: str, file: Path, arguments: Sequence[str]) -> int:
    """Print a command's settings, or the group or key named, without importing the command, which takes seconds."""
    from experiments.cli.help import help_text
    from fedmf.errors import SettingError

    try:
        print(help_text(name, ast.get_docstring(ast.parse(file.read_bytes())) or "", arguments), end="")
    except SettingError as error:
        return _fail(f"error: {error}\n")
    return 0


def _print_completion(shells: Collection[str]) -> int:
    from experiments.cli.completion import BASH

    if list(shells) != ["bash"]:
        return _fail(f"error: --completion is {' '.join(shells) or 'without a shell'}; it must be bash.\n")
    print(BASH)
    return 0


def _print_choices(commands: Collection[str]) -> None:
    from experiments.cli.completion import complete

    print(" ".join(complete(os.environ.get("COMP_LINE", ""), commands)))


def _no_command(name: str, commands: Collection[str]) -> str:
    """Return the sentence about a name that is no command, with the nearest one that is."""
    from difflib import get_close_matches

    if "=" in name or name.startswith("-"):
        return f"{name!r} stands where a command does, such as `fedmf simulate {name}`; `fedmf --help` lists all commands."
    near = get_close_matches(name, commands, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"{name!r} is no command of fedmf; {meant}`fedmf --help` lists all of them."


def _fail(text: str) -> int:
    sys.stderr.write(text)
    return USER_MISTAKE


def _version() -> str:
    from importlib.metadata import version

    return version("fedmf")
