"""Did you mean: what a setting or a choice that is none was meant to be, as one sentence with a pointer to help.

`refusal` is asked after Hydra has refused something, and finds the reason among the overrides as they were typed.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

from experiments.settings.reference import (
    RUN,
    Reference,
    Setting,
    called,
    choices_in_conf,
    experiments,
    reference,
)
from fedmf.checks import LEAST_BEGINNING, meant

NEAR = 0.72  # of difflib's ratio: two letters swapped or one left out of a short word, not another word
MOST = 3  # suggestions
ALSO_A_RUN = ("plan",)  # commands that take the settings of a run as well as their own
_OVERRIDE = re.compile(r"(?P<mark>\+{0,2}|~)(?P<key>[\w.@/-]+)(?:=(?P<value>.*))?", re.DOTALL)
_IMPORT_PATH = re.compile(r"[\w.]+:\w+")

ALSO_CALLED: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("lr", "rate", "eta"), ("optimizer.learning_rate", "client.learning_rate")),
    **dict.fromkeys(("client_lr", "local_lr"), ("client.learning_rate",)),
    "server_lr": ("optimizer.learning_rate",),
    "beta": ("optimizer.momentum",),
    **dict.fromkeys(("batch", "bs", "batchsize"), ("client.batch_size",)),
    **dict.fromkeys(("local_epochs", "client_epochs"), ("client.epochs",)),
    **dict.fromkeys(("eps", "budget"), ("privacy.epsilon",)),
    **dict.fromkeys(("sigma", "noise", "z"), ("privacy.noise_multiplier",)),
    **dict.fromkeys(("clip", "clip_norm", "l2", "max_grad_norm", "clipping_norm"), ("clipping.l2_norm",)),
    **dict.fromkeys(("gamma", "keep", "sparsity", "p"), ("compression.keep_probability",)),
    **dict.fromkeys(("int8", "bits", "quantize", "quantization", "dtype"), ("compression.value_type",)),
    **dict.fromkeys(
        ("clients", "n", "cohort", "num_clients", "clients_per_round", "sample_size"),
        ("population.cohort_size",),
    ),
    **dict.fromkeys(
        ("rounds", "round", "num_rounds", "steps"), ("population.rounds_per_epoch", "population.epochs")
    ),
    **dict.fromkeys(("processes", "num_workers", "jobs", "n_jobs", "cpus"), ("engine.workers", "workers")),
    **dict.fromkeys(("gpu", "cuda", "gpus"), ("client.device",)),
    **dict.fromkeys(("data", "data_path", "data_dir", "file"), ("dataset.path", "dataset")),
    **dict.fromkeys(
        ("dir", "out", "folder", "output_dir", "logdir", "run_dir"), ("run.directory", "directory")
    ),
    **dict.fromkeys(("random_seed", "rng"), ("seed",)),
    **dict.fromkeys(("adjacent", "neighbours", "neighbors"), ("privacy.adjacency",)),
    **dict.fromkeys(
        ("matrix", "family", "factorization", "mechanism", "mechanisms"), ("mechanism", "families")
    ),
    **dict.fromkeys(("net", "network", "arch", "architecture"), ("model",)),
    **dict.fromkeys(("format", "json"), ("output",)),
    **dict.fromkeys(("tensorboard", "wandb", "mlflow"), ("logger",)),
    **dict.fromkeys(("scores", "metric"), ("metrics",)),
}
"""Words that people know from elsewhere, with the keys or groups that they mean here."""


def refusal(
    command: str, overrides: Sequence[str], *, added_only: bool = False, recorded: Sequence[str] = ()
) -> str | None:
    """Return what is wrong with the first of `overrides` that names no setting or choice of `command`, if one does.

    `added_only`: look at those with a + alone; the others say which choices they go with, and so do those `recorded`
    before them, which nobody typed.
    """
    known = reference(command)
    chosen = _chosen([*recorded, *overrides], known)
    for place, override in enumerate(overrides):
        if added_only and not override.startswith("+"):
            continue
        following = overrides[place + 1] if place + 1 < len(overrides) else None
        if said := _flag(command, override, following) or _wrong(command, override, following, known, chosen):
            return said
    return None


def refuse_flag(command: str, arguments: Sequence[str], allowed: Iterable[str] = ()) -> str | None:
    """Return what is wrong with an option such as --seed that is none of `allowed`, if there is one."""
    for argument, following in zip(arguments, (*arguments[1:], None), strict=False):
        if argument.partition("=")[0] not in allowed and (said := _flag(command, argument, following)):
            return said
    return None


def unknown(command: str, override: str, chosen: Mapping[str, str | None] | None = None) -> str:
    """Return that there is no such setting, what it may have been meant to be, and where help is.

    `chosen` are the choices made of each group, None: the default ones.
    """
    key, _, value = override.partition("=")
    known = reference(command)
    suggested = suggestions(command, key)
    made = {name: group.default for name, group in known.groups.items()} if chosen is None else chosen
    typed = [_typed(known, item, value) + _only_with(known, item, made) for item in suggested]
    groups = {item.rpartition(".")[0] for item in suggested or [key]}
    topic = f" {groups.pop()}" if len(groups) == 1 and groups <= set(known.groups) else ""
    asked = f"did you mean {_listed(typed)}? " if typed else ""
    return f"{key} is no setting of {command}; {asked}`{called(command)} --help{topic}` lists all of them."


def suggestions(command: str, key: str) -> list[str]:
    """Return the keys and groups of `command` that `key` may have been meant to be, the likeliest first.

    >>> suggestions("simulate", "epsilon"), suggestions("simulate", "popultion.epochs"), suggestions("simulate", "qqq")
    (['privacy.epsilon'], ['population.epochs'], [])
    """
    found = _near(command, key)
    return _near(RUN, key) if not found and command in ALSO_A_RUN else found


def _near(command: str, key: str) -> list[str]:
    known = reference(command)
    names = [*known.groups, *known.keys]
    word = key.lower().replace("-", "_")
    last = word.rpartition(".")[2]
    by_last: dict[str, list[str]] = {}
    for name in names:
        by_last.setdefault(name.rpartition(".")[2].lower(), []).append(name)
    found = _in_group(word, last, [name for name in names if "." in name]) if "." in word else []
    if not found:
        for name in ALSO_CALLED.get(last, ()):
            found += [name] if name in names else by_last.get(name.rpartition(".")[2], [])
        found += by_last.get(last, [])
    if not found:
        begun = [part for part in by_last if len(last) >= LEAST_BEGINNING and part.startswith(last)]
        near = begun or get_close_matches(last, by_last, n=1, cutoff=NEAR)
        found = [name for part in near for name in by_last[part]]
    return list(dict.fromkeys(found))[:MOST]


def _in_group(word: str, last: str, keys: Sequence[str]) -> list[str]:
    """Return which of `keys` a key with a group may have been meant to be: first by what people call it elsewhere."""
    near = [last] if last in ALSO_CALLED else get_close_matches(last, ALSO_CALLED, n=1, cutoff=NEAR)
    group = word.rpartition(".")[0] + "."
    exact = get_close_matches(word, keys, n=1, cutoff=0.9)  # a letter off
    called = [key for name in near for key in ALSO_CALLED[name] if key in keys and key.startswith(group)]
    if last in ALSO_CALLED:
        exact, called = called, exact
    return [*exact, *called] or get_close_matches(word, keys, n=1, cutoff=NEAR)


def unfit(command: str, key: str, value: str, overrides: Sequence[str] = ()) -> str | None:
    """Return what a setting must be that was given a value, or keys below it, of another kind; None for what is none.

    `overrides` make the choices that it goes with.

    >>> unfit("simulate", "seed", "1e9")
    'seed is 1e9; it must be a whole number in digits. `fedmf simulate --help seed` says more.'
    """
    known = reference(command)
    setting = next((name for name in _outward(key) if name in known.keys), None)
    if setting is None:
        return None
    variants = known.of_key(setting)
    about = next(iter(_fitting(variants, _chosen(overrides, known))), variants[0])
    kind = about.type.removesuffix(" or null") if value[:1] == "[" else about.type
    must = (
        f"one of {', '.join(about.choices)}"
        if kind.startswith("choice")
        else _a(kind).replace("whole number", "whole number in digits")
    )
    said = f"{key} is {value}" if setting == key else f"{key}={value} gives {setting} keys of its own"
    return f"{said}; it must be {must}. `{called(command)} --help {setting}` says more."


def _outward(key: str) -> list[str]:
    """Return a key and the keys that it lies below, from the inside."""
    parts = key.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]


def choices_sentence(command: str, key: str, value: str, choices: Iterable[str]) -> str:
    """Return that a value is none of the choices, which is nearest, and where help is."""
    choices = list(choices)
    return (
        f"{key} is {value!r}; it must be one of {', '.join(choices)}{meant(value, choices)} "
        f"`{called(command)} --help {key}` says more."
    )


def _wrong(
    command: str, override: str, following: str | None, known: Reference, chosen: Mapping[str, str | None]
) -> str | None:
    """Return what is wrong with one override, None where nothing is, or nothing that is known here."""
    match = _OVERRIDE.fullmatch(override)
    if match is None or match["key"].startswith(("hydra.", "hydra/")):
        return None
    mark, key, value = match["mark"], match["key"], match["value"]
    if value is None and mark != "~":
        return _without_value(command, key, following)
    if key == "experiment" and command == RUN:
        return _experiment(mark, value or "")
    if key in known.groups:
        return _group(command, key, value or "", known)
    if key not in known.keys:
        inside = any(key.startswith(f"{name}.") for name in known.keys)  # a mapping of one's own
        return None if inside else unknown(command, f"{key}={value}" if value else key, chosen)
    settings = known.of_key(key)
    group, fitting = settings[0].group, _fitting(settings, chosen)
    if not fitting:
        have = [f"{group}={choice}" for item in settings for choice in item.of]
        return (
            f"{key} is no setting of {group}={chosen[group]}, but one of {_listed(have)}; choose it so, or leave {key} "
            f"out. `{called(command)} --help {group}` has the keys of each."
        )
    if mark == "+":
        return f"{key} is there already; give it as {key}={value}, without +."
    return _value(command, fitting[0], value or "")


def _fitting(settings: Sequence[Setting], chosen: Mapping[str, str | None]) -> list[Setting]:
    """Return those of the settings of one key that go with the choice made of its group."""
    made = str(chosen.get(settings[0].group)).split(",")  # several in a sweep
    return [item for item in settings if any(item.is_of(choice) for choice in made)]


def _value(command: str, setting: Setting, value: str) -> str | None:
    """Return what is wrong with the value of a setting, as far as its type says it."""
    key, kind = setting.key, setting.type.removesuffix(" or null")
    values = value.split(",") if "," in value and value[:1] not in "[{'\"" else [value]  # of a sweep
    for each in values:
        if _IMPORT_PATH.fullmatch(each) or (each.lower() == "null" and kind != setting.type):
            continue
        if kind == "choice" and each not in setting.choices:
            return choices_sentence(command, key, each, setting.choices)
        if kind.startswith("list") and each[:1] != "[":
            meant = each if "[" in value else value  # names with commas between them are one list
            return f'{key} is {meant}; it must be a list, such as "{key}=[{meant}]". `{called(command)} --help {key}` says more.'
        if not _may_be(each, kind):
            return f"{key} is {each or 'empty'}; it must be {_a(setting.type)}. `{called(command)} --help {key}` says more."
    return None


def _may_be(text: str, kind: str) -> bool:
    """Say whether a value may be of a type, for which it need not be a good one."""
    if kind in ("whole number", "number"):
        try:
            number = float(text)
        except ValueError:
            return text[:1] in "'\"$" and bool(text)  # in quotes, or put in by OmegaConf
        return kind == "number" or number == int(number) if abs(number) < float("inf") else kind == "number"
    if kind == "true or false":
        return text.lower() in ("true", "false", "yes", "no", "on", "off", "1", "0", "y", "n")
    return True


def _a(kind: str) -> str:
    return kind if kind.startswith("true") else f"a {kind}"


def _group(command: str, key: str, value: str, known: Reference) -> str | None:
    group = known.groups[key]
    if not group.choices:
        example = next((item for item in known.settings if item.group == key), None)
        assert example is not None  # a group without choices has keys
        return (
            f"{key} is a group of settings; give one of its keys, such as {example.key}={example.default}. "
            f"`{called(command)} --help {key}` lists them."
        )
    for each in value.split(","):
        if each not in group.choices and each not in choices_in_conf(key):
            return choices_sentence(command, key, each, group.choices)
    return None


def _experiment(mark: str, value: str) -> str | None:
    names = experiments()
    if value not in names:
        return choices_sentence(RUN, "+experiment", value, names).partition(" `")[0]
    return None if mark else f"experiment={value} adds to the settings; it is given as +experiment={value}."


def _flag(command: str, argument: str, following: str | None) -> str | None:
    """Return how a setting is given that was given as an option, None for what is no option."""
    if not re.match(r"--?[A-Za-z]", argument):
        return None
    name, _, value = argument.partition("=")
    key = name.lstrip("-").replace("-", "_")
    names = suggestions(command, key) if key not in reference(command).keys else [key]
    taken = following if following and "=" not in following and not following.startswith("-") else ""
    typed = [f"{item}={value or taken or 'VALUE'}" for item in names]
    how = f": {_listed(typed)}" if typed else ""
    return (
        f"{name} is no option of {command}; settings are given as key=value, without dashes{how}. "
        f"`{called(command)} --help` lists them."
    )


def _without_value(command: str, key: str, following: str | None) -> str:
    known = reference(command)
    value = following if following and "=" not in following and not following.startswith("-") else "VALUE"
    names = [key] if key in known.keys else suggestions(command, key)
    items = [f"{name}={value}" for name in names]
    items += [f"{name}={key}" for name, group in known.groups.items() if key in group.choices]
    items += [
        f"{item.key}={key}"
        for item in known.settings
        if item.type.startswith("choice") and key in item.choices
    ]
    typed = f", such as {_listed(items[:MOST])}" if items else ""
    return f"{key} is not understood; settings are given as key=value{typed}. `{called(command)} --help` lists them."


def _chosen(overrides: Sequence[str], known: Reference) -> dict[str, str | None]:
    """Return the choice that is made of each group."""
    chosen = {name: group.default for name, group in known.groups.items()}
    for override in overrides:
        name, _, value = override.lstrip("+").partition("=")
        if name in chosen:
            chosen[name] = value
    return chosen


def _typed(known: Reference, key: str, value: str) -> str:
    """Return a setting as it would be typed, a single value of a list as a list."""
    is_list = any(item.type.startswith("list") for item in known.of_key(key)) and value[:1] != "["
    return f"{key}=[{value}]" if is_list and value else f"{key}={value}" if value else key


def _only_with(known: Reference, key: str, chosen: Mapping[str, str | None]) -> str:
    """Return with which choices a suggestion is there, if not with those made."""
    settings = [item for item in known.of_key(key) if item.of]
    if not settings or any(item.is_of(chosen.get(item.group)) for item in settings):
        return ""
    choices = (choice for item in settings for choice in item.of)
    return f" (with {settings[0].group}={' or '.join(choices)})"


def _listed(items: Sequence[str]) -> str:
    """Return items as a list in a sentence."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} or {items[-1]}"
