"""What `fedmf COMMAND --help [GROUP | GROUP=CHOICE | KEY]` prints, from the reference of the settings and the command's docstring."""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from experiments.settings.mistakes import unknown
from experiments.settings.reference import RUN, Setting, called, experiments, reference
from fedmf.errors import SettingError

FLAGS = ("-h", "--help")
LEAST, MOST = 60, 100  # columns
LEFT = 34  # of them for a key and its default


def is_asked(arguments: Sequence[str]) -> bool:
    """Say whether the arguments of a command ask for help."""
    return any(argument in FLAGS for argument in arguments)


def help_text(command: str, doc: str, arguments: Sequence[str]) -> str:
    """Return the help that `arguments` ask for: of the command, or of the groups or keys that they name.

    Raises `SettingError` for a topic that the command does not have.
    """
    topics = [argument for argument in arguments if not argument.startswith("-")]
    parts = [part for topic in topics for part in _of_topic(command, topic)]
    columns = max(LEAST, min(shutil.get_terminal_size((80, 24)).columns, MOST))
    printed = Console(file=StringIO(), width=columns, markup=False, highlight=False, emoji=False)
    for number, part in enumerate(parts or _of_command(command, doc)):
        if number:
            printed.print()
        printed.print(part)
    assert isinstance(printed.file, StringIO)
    return "".join(f"{line.rstrip()}\n" for line in printed.file.getvalue().splitlines())


def _of_command(command: str, doc: str) -> Iterator[RenderableType]:
    """Yield all keys that the command has with its default choices, under its docstring."""
    known, call = reference(command), called(command)
    doc = doc.replace("python -m experiments.", call.removesuffix(command))
    for paragraph in doc.replace(" [hydra overrides]", " [key=value ...]").strip().split("\n\n"):
        is_code = paragraph.startswith(" ")
        yield Text(paragraph, no_wrap=True, overflow="ignore") if is_code else " ".join(paragraph.split())
    yield "Settings, given as key=value; behind a key stands its default:"
    if alone := [setting for setting in known.settings if not setting.group]:
        yield _rows(sorted(alone, key=lambda item: item.default != "required"), brief=True)
    for name, group in known.groups.items():
        if group.default is None:
            yield f"{name}: {group.about}"
        else:
            others = ", ".join(choice for choice in group.choices if choice != group.default)
            yield f"{name}={group.default}: {group.about}; also: {others} (`{call} --help {name}` says more)"
        if rows := [item for item in known.settings if item.group == name and item.is_of(group.default)]:
            yield _rows(rows, brief=True)
    if command == RUN:
        yield (
            "A sweep tries every combination: -m seed=1,2,3 mechanism=optimal,blt. +experiment=NAME takes the settings of "
            f"a published run: {', '.join(experiments())}."
        )
    yield f"`{call} --help {'GROUP | ' if known.groups else ''}KEY` says more of one."


def _of_topic(command: str, topic: str) -> Iterator[RenderableType]:
    """Yield a key; or a group, its choices and its keys, those of one choice if one is named."""
    known = reference(command)
    name, _, choice = topic.partition("=")
    if command == "plan" and name not in (*known.keys, *known.groups):
        known = reference(RUN)
    if name not in known.groups:
        if not known.of_key(name):
            raise SettingError(unknown(command, topic))
        yield _rows(known.of_key(name), brief=False)
        return
    group = known.groups[name]
    if choice and choice not in group.choices:
        raise SettingError(f"{name} is {choice!r}; it must be one of {', '.join(group.choices)}.")
    yield f"{name}: {group.about}"
    shown = {choice: group.choices[choice]} if choice else group.choices
    if shown:
        yield _columns(
            {
                f"{name}={one}{' (default)' if one == group.default else ''}": about
                for one, about in shown.items()
            }.items()
        )
    if rows := [item for item in known.settings if item.group == name and (not choice or item.is_of(choice))]:
        yield _rows(rows, brief=False)


def _rows(settings: Iterable[Setting], *, brief: bool) -> RenderableType:
    """Return settings with their meanings, types and choices, in brief the choices alone."""
    return _columns((item.key + _default(item), f"{item.meaning}{_more(item, brief)}") for item in settings)


def _default(setting: Setting) -> str:
    return " (required)" if setting.default == "required" else f" = {setting.default}"


def _more(setting: Setting, brief: bool) -> str:
    if brief:
        return f" [{' | '.join(setting.choices)}]" if setting.type.startswith("choice") else ""
    facts = [f"{setting.type}: {', '.join(setting.choices)}" if setting.choices else setting.type]
    if setting.of:
        facts.append(f"with {setting.group}={', '.join(setting.of)}")
    return f" [{'; '.join(facts)}]"


def _columns(rows: Iterable[tuple[str, str]]) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=LEFT, overflow="fold")
    table.add_column(overflow="fold")
    for left, right in rows:
        table.add_row(left, right)
    return Padding(table, (0, 0, 0, 2))
