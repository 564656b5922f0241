"""What <TAB> offers after `fedmf`: commands, settings and choices, from the reference of the settings."""

from collections.abc import Iterable

OPTIONS = ("--completion", "--help", "--version")
BASH = r"""
_fedmf() {
    local line=${COMP_LINE:0:COMP_POINT}
    local word=${line##*[[:space:]]}
    local found=$(COMP_LINE=$line "$1" -sc query=bash 2> /dev/null)
    COMPREPLY=($(compgen -W "$found" -- "$word"))
    if [[ ${#COMPREPLY[@]} == 1 && $COMPREPLY != *[=./] ]]; then
        compopt +o nospace 2> /dev/null
    fi
    # Bash replaces only what follows the last word break, which may be the = of key=value.
    COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*[$COMP_WORDBREAKS]}"}"}")
}
complete -o nospace -o default -F _fedmf fedmf
"""


def complete(line: str, commands: Iterable[str]) -> list[str]:
    """Return what the last word of the command line `line` can become: commands, settings and their choices.

    >>> complete("fedmf p", ["plan", "simulate"])
    ['plan']
    >>> complete("fedmf simulate seed=1 mechanism=sq", ["plan", "simulate"])
    ['mechanism=sqrt_blt', 'mechanism=sqrt_toeplitz']
    """
    from experiments.settings.reference import reference  # not for a name alone: a key press cannot wait

    _, _, rest = line.lstrip().partition(" ")
    name, space, arguments = rest.lstrip().partition(" ")
    if not space:
        return [known for known in (*commands, *OPTIONS) if known.startswith(name)]
    if name not in commands:
        return []
    word, known = arguments.rpartition(" ")[2], reference(name)
    key, is_given, _ = word.partition("=")
    if is_given:
        choices = {*(known.groups[key].choices if key in known.groups else ())}.union(
            *(setting.choices for setting in known.of_key(key))
        )
        found = [f"{key}={choice}" for choice in sorted(choices)]
    else:
        found = [f"{name}=" for name in (*known.groups, *known.keys)]
    return [text for text in found if text.startswith(word)]
