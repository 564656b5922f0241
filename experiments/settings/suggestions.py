"""Did you mean: a setting that does not exist, with the nearest one, and how settings are given."""

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

from experiments.settings.reference import RUN, Reference, Setting, called, reference
from fedmf.checks import meant

MOST = 3  # suggestions
ALSO_A_RUN = ("plan",)  # commands that take the settings of a run as well as their own
_OVERRIDE = re.compile(r"(?P<mark>\+{0,2}|~)(?P<key>[\w.@/-]+)(?:=(?P<value>.*))?", re.DOTALL)


def refusal(
    command: str, overrides: Sequence[str], *, added_only: bool = False, recorded: Sequence[str] = ()
) -> str | None:
    """Return what is wrong with the first of `overrides` that names no setting of `command`; None: none does.

    `added_only`: look only at those with a +; the others, and those `recorded` before them, make the choices of groups.
    """
    known = reference(command)
    chosen = _chosen([*recorded, *overrides], known)
    for override in overrides:
        match = _OVERRIDE.fullmatch(override)
        if match is None or (added_only and not match["mark"].startswith("+")):
            continue
        key, value = match["key"], match["value"]
        if key in known.groups and not known.groups[key].choices:
            return f"{key} is a group of settings; give its keys, such as {key}.KEY=VALUE. `{called(command)} --help {key}` lists them."
        if key.startswith(("hydra.", "hydra/")) or key == "experiment" or key in known.groups:
            continue
        if value is None and match["mark"] != "~":
            return f"{key} is not understood; settings are given as key=value. `{called(command)} --help` lists them."
        settings = known.of_key(key)
        if not settings:
            if not any(key.startswith(f"{name}.") for name in known.keys):  # inside a user's mapping
                return unknown(command, f"{key}={value}" if value else key)
        elif not _fitting(settings, chosen):
            group = settings[0].group
            have = ", ".join(f"{group}={choice}" for item in settings for choice in item.of)
            return f"{key} is no setting of {group}={chosen[group]}, but of {have}."
    return None


def refuse_flag(command: str, arguments: Sequence[str], allowed: Iterable[str] = ()) -> str | None:
    """Return what is wrong with an option such as --seed that is none of `allowed`; None: there is none."""
    for argument in arguments:
        name = argument.partition("=")[0]
        if re.match(r"--?[A-Za-z]", argument) and name not in allowed:
            near = suggestions(command, name.lstrip("-").replace("-", "_"))
            return (
                f"{name} is no option of {command}; settings are given as key=value, without dashes"
                f"{''.join(f': {key}=VALUE' for key in near[:1])}. `{called(command)} --help` lists them."
            )
    return None


def unknown(command: str, override: str) -> str:
    """Return that there is no such setting, the nearest ones, and where help is."""
    key, _, value = override.partition("=")
    near = " or ".join(f"{item}={value}" if value else item for item in suggestions(command, key))
    asked = f"did you mean {near}? " if near else ""
    return f"{key} is no setting of {command}; {asked}`{called(command)} --help` lists all of them."


def suggestions(command: str, key: str) -> list[str]:
    """Return the keys and groups of `command` that `key` may have been meant to be, the likeliest first.

    >>> suggestions("simulate", "epsilon"), suggestions("simulate", "popultion.epochs"), suggestions("simulate", "qqq")
    (['privacy.epsilon'], ['population.epochs'], [])
    """
    known = reference(command)
    names = list(dict.fromkeys([*known.groups, *known.keys]))
    if "." in key:
        return get_close_matches(key, names, n=1, cutoff=0.72)
    ends = {name: name.rpartition(".")[2] for name in names}
    near = get_close_matches(key.lower(), ends.values(), n=1, cutoff=0.72)
    found = [name for name, end in ends.items() if end in near][:MOST]
    return suggestions(RUN, key) if not found and command in ALSO_A_RUN else found


def choices_sentence(command: str, key: str, value: str, choices: Iterable[str]) -> str:
    """Return that a value is none of the choices, which is nearest, and where help is."""
    choices = list(choices)
    return (
        f"{key} is {value!r}; it must be one of {', '.join(choices)}{meant(value, choices)} "
        f"`{called(command)} --help {key}` says more."
    )


def _chosen(overrides: Sequence[str], known: Reference) -> dict[str, str | None]:
    """Return the choice that is made of each group."""
    chosen = {name: group.default for name, group in known.groups.items()}
    for override in overrides:
        name, _, value = override.lstrip("+").partition("=")
        if name in chosen:
            chosen[name] = value
    return chosen


def _fitting(settings: Sequence[Setting], chosen: Mapping[str, str | None]) -> list[Setting]:
    """Return those of the settings of one key that go with the choice made of its group."""
    made = str(chosen.get(settings[0].group)).split(",")  # several in a sweep
    return [item for item in settings if any(item.is_of(choice) for choice in made)]
