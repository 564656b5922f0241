"""What `fedmf COMMAND --help [GROUP | KEY]` prints, from the reference of the settings and the command's docstring."""

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path

from rich.table import Table
from rich.text import Text

from experiments.cli import output
from experiments.settings.compose import SEARCHPATH, given_values, unknown
from experiments.settings.jobs import without_files
from experiments.settings.reference import RUN, Reference, Setting, called, experiments, reference
from fedmf.errors import SettingError

WIDTH = 100  # columns at most
SWEEPS = "-m seed=1,2 runs each value in turn; +experiment=NAME reads the settings of a published run, or of one in --config-dir FOLDER:"

Row = tuple[str, str]


def print_help(command: str, doc: str, arguments: Sequence[str]) -> None:
    """Print the help that `arguments` ask for: of the command, or of the groups or keys that they name, as settings too (model=mlp).

    Raises `SettingError` for a topic that the command does not have.
    """
    known, console = reference(command), output.console()
    console.width = min(console.width, WIDTH)
    show = partial(console.print, markup=False, soft_wrap=False)
    arguments = without_files(arguments)
    topics = [
        argument.partition("=")[0]
        for argument in arguments
        if not argument.startswith(("-", "as=", SEARCHPATH))
    ]
    for topic in topics:
        if topic not in (*known.groups, *known.keys):
            raise SettingError(unknown(command, topic))
    if not topics:
        for paragraph in doc.replace("python -m experiments.", called("")).strip().split("\n\n"):
            show(paragraph if paragraph.startswith(" ") else " ".join(paragraph.split()), end="\n\n")
        show(
            f"`{called(command)} --help GROUP` (or KEY) prints all keys of a group. Settings, given as key=value:"
        )
    for heading, rows in _sections(known, topics):
        table = Table.grid("", "", padding=(0, 2, 0, 0))
        for row in rows:
            table.add_row(*map(Text, row))
        show(heading, table, sep="\n")
    if command == RUN and not topics:
        own = given_values([text for text in arguments if text.startswith(SEARCHPATH)]).get(SEARCHPATH, [])
        show(SWEEPS, ", ".join(experiments([Path(folder.removeprefix("file://")) for folder in own])))


def _sections(known: Reference, topics: Collection[str]) -> Iterator[tuple[str, list[Row]]]:
    """Yield what is said of each group, and its rows: of the topics alone, or of all keys that the default choices have."""
    yield "", [_row(item) for item in known.settings if (item.key in topics if topics else not item.group)]
    for name, group in known.groups.items():
        if topics and name not in topics:
            continue
        rows = [(f"{name}={choice}", about) for choice, about in group.choices.items()]
        own = [item for item in known.settings if item.group == name]
        rows += [_row(item) for item in own if topics or item.is_of(group.default)]
        yield f"{name}{f'={group.default}' if group.default else ''}: {group.about}", rows


def _row(item: Setting) -> Row:
    kind = ", ".join((item.type, *item.choices))
    of = f"; with {item.group}={', '.join(item.of)}" if item.of else ""
    return f"  {item.key} = {item.default}", f"{item.meaning} [{kind}{of}]"
