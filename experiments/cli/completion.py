"""What <TAB> offers after `fedmf`: commands by their names, settings of a run as Hydra completes them.

Hydra's own completion knows programs of one word; here the word after `fedmf` is taken away before it is asked.
"""

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
    """Return what the last word of the command line `line` can become; settings complete for `simulate`.

    >>> complete("fedmf p", ["plan", "simulate"])
    ['plan']
    >>> complete("fedmf simulate mechanism=sq", ["plan", "simulate"])
    ['mechanism=sqrt_blt', 'mechanism=sqrt_toeplitz']
    """
    _, _, rest = line.lstrip().partition(" ")
    name, space, overrides = rest.lstrip().partition(" ")
    if not space:
        return [known for known in (*commands, *OPTIONS) if known.startswith(name)]
    return _complete_overrides(overrides) if name == "simulate" else []


def _complete_overrides(overrides: str) -> list[str]:
    """Return what the last override can become, without importing the command, for which a key press cannot wait."""
    from experiments.settings.compose import completions
    from experiments.settings.schema import Settings

    return completions("config", overrides, Settings)
