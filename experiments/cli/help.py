"""What `fedmf COMMAND --help [GROUP | GROUP=CHOICE | KEY]` prints.

Everything comes from the reference of the settings and from the command's docstring, at the width of the terminal.
"""

import shutil
import textwrap
from collections.abc import Iterable, Sequence

from experiments.settings.reference import RUN, Group, Reference, Setting, called, experiments, reference
from experiments.settings.suggestions import ALSO_A_RUN, choices_sentence, unknown
from fedmf.errors import SettingError

FLAGS = ("-h", "--help")
LEAST, MOST = 60, 100  # columns
LEFT = 38  # of them for a key and its default
SWEEP = """\
A sweep tries every combination: -m seed=1,2,3 mechanism=optimal,blt. +experiment=NAME takes the settings of a
published run: {experiments}.
"""


def is_asked(arguments: Sequence[str]) -> bool:
    """Say whether the arguments of a command ask for help."""
    return any(argument in FLAGS for argument in arguments)


def help_text(command: str, doc: str, arguments: Sequence[str]) -> str:
    """Return the help that `arguments` ask for: of the command, or of the group or key that they name.

    Raises `SettingError` for a topic that the command does not have.
    """
    known = reference(command)
    topics = [argument for argument in arguments if not argument.startswith("-")]
    if not topics:
        return _of_command(command, doc, known)
    return "\n\n".join(_of_topic(command, topic, known) for topic in topics) + "\n"


def as_called(text: str, command: str) -> str:
    """Return a docstring with commands as this process was called: `fedmf NAME` or `python -m ...`."""
    prefix = called(command).removesuffix(command)
    return text.replace("python -m experiments.", prefix).replace(" [hydra overrides]", " [key=value ...]")


def _of_command(command: str, doc: str, known: Reference) -> str:
    """Return all keys that the command has with its default choices, under its docstring."""
    call = called(command)
    parts = [_described(doc, command), "Settings, given as key=value; behind a key stands its default:"]
    alone = [setting for setting in known.settings if not setting.group]
    if alone:
        parts.append(_rows(alone, brief=True))
    for name, group in known.groups.items():
        rows = [item for item in known.settings if item.group == name and item.is_of(group.default)]
        parts.append("\n".join(filter(None, (_heading(command, name, group), _rows(rows, brief=True)))))
    if command == RUN:
        parts.append(_filled(SWEEP.format(experiments=", ".join(experiments()))))
    topics = [item for item in ("GROUP" if known.groups else "", "KEY") if item]
    parts.append(_filled(f"`{call} --help {' | '.join(topics)}` says more of one."))
    return "\n\n".join(parts) + "\n"


def _of_topic(command: str, topic: str, known: Reference) -> str:
    name, _, choice = topic.partition("=")
    if command in ALSO_A_RUN and name not in (*known.keys, *known.groups):
        known = reference(RUN)
    if name in known.groups:
        return _of_group(command, name, choice, known)
    if settings := known.of_key(name):
        return _rows(settings, brief=False)
    raise SettingError(unknown(command, topic))


def _of_group(command: str, name: str, choice: str, known: Reference) -> str:
    """Return a group: its choices, and its keys, those of one choice if one is named."""
    group = known.groups[name]
    if choice and choice not in group.choices:
        raise SettingError(choices_sentence(command, name, choice, group.choices))
    settings = [item for item in known.settings if item.group == name and (not choice or item.is_of(choice))]
    choices = {choice: group.choices[choice]} if choice else group.choices
    said = [
        _two_columns(f"{name}={each}{' (default)' if each == group.default else ''}", about)
        for each, about in choices.items()
    ]
    heading = _filled(f"{name}: {group.about}")
    return "\n\n".join(filter(None, (heading, "\n".join(said), _rows(settings, brief=False))))


def _described(doc: str, command: str) -> str:
    """Return a docstring as wide as the terminal; of what is indented only lines that are wider are folded."""
    paragraphs = as_called(doc, command).strip().split("\n\n")
    return "\n\n".join(_code(text) if text.startswith(" ") else _filled(text) for text in paragraphs)


def _code(text: str) -> str:
    return "\n".join(line if len(line) <= _width() else _folded(line) for line in text.splitlines())


def _folded(line: str) -> str:
    """Return a command as a shell takes it on several lines, and what is said of it, behind three spaces, below it."""
    indent = line[: len(line) - len(line.lstrip())]
    call, _, remark = line.strip().partition("   ")
    further = f"{indent}    "
    lines = textwrap.wrap(call, _width() - 2, initial_indent=indent, subsequent_indent=further,
                          break_on_hyphens=False, break_long_words=False)  # fmt: skip
    said = textwrap.wrap(remark.strip(), _width(), initial_indent=further, subsequent_indent=further)
    return "\n".join((" \\\n".join(lines), *said))


def _heading(command: str, name: str, group: Group) -> str:
    """Return the line above a group's keys."""
    if group.default is None:
        return _filled(f"{name}: {group.about}")
    is_chosen = group.default in group.choices
    other = [choice for choice in group.choices if choice != group.default]
    text = f"{name}={group.default}: {group.about}; {'also' if is_chosen else 'choices'}: {', '.join(other)}"
    return _filled(text) + f"\n  (`{called(command)} --help {name}` has the keys of each)"


def _rows(settings: Iterable[Setting], *, brief: bool) -> str:
    return "\n".join(
        _two_columns(item.key + _default(item), item.meaning + (_brief(item) if brief else _more(item)))
        for item in settings
    )


def _default(setting: Setting) -> str:
    return " (required)" if setting.default == "required" else f" = {setting.default}"


def _brief(setting: Setting) -> str:
    return f" [{' | '.join(setting.choices)}]" if setting.type.startswith("choice") else ""


def _more(setting: Setting) -> str:
    """Return type, choices, and the choices of its group that have it."""
    facts = [f"{setting.type}: {', '.join(setting.choices)}" if setting.choices else setting.type]
    if setting.of:
        facts.append(f"with {setting.group}={', '.join(setting.of)}")
    return f" [{'; '.join(facts)}]"


def _two_columns(left: str, right: str) -> str:
    """Return a row; a left part that is too long stands on a line of its own."""
    lines = textwrap.wrap(right, max(_width() - LEFT, 20), break_on_hyphens=False, break_long_words=False)
    indent = " " * LEFT
    first = f"  {left}"
    if len(first) < LEFT - 1:
        return "\n".join((f"{first:<{LEFT}}{lines[0]}", *(indent + line for line in lines[1:])))
    folded = textwrap.wrap(
        first, _width(), initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
    )
    return "\n".join((*folded, *(indent + line for line in lines)))


def _filled(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), _width(), break_on_hyphens=False, break_long_words=False)


def _width() -> int:
    return max(LEAST, min(shutil.get_terminal_size((80, 24)).columns, MOST))
