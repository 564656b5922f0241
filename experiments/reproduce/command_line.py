"""The command line of the programs that are in the repository only: key=value for the fields of a frozen dataclass."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, NoReturn, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments.cli.command import end_with, guard
from fedmf.errors import SettingError

T = TypeVar("T")


def run(
    function: Callable[[T], object], settings: type[T], doc: str, argv: Sequence[str] | None = None
) -> NoReturn:
    """Call `function` with the settings of the command line and exit: 0, or 2 with one sentence for a mistake."""
    arguments = list(sys.argv[1:] if argv is None else argv)

    def action() -> None:
        if {"-h", "--help"} & {*arguments}:
            keys = [f"  {one.name} ({one.default}): {one.metadata['means']}" for one in fields(settings)]  # type: ignore[arg-type]
            print("\n".join([doc.strip(), "", *keys]))
        else:
            function(read(settings, arguments))

    end_with(lambda: guard(action))


def read(settings: type[T], arguments: Sequence[str]) -> T:
    """Return the settings that the arguments give. Raises `SettingError` for what does not fit."""
    if unkeyed := [one for one in arguments if "=" not in one]:
        raise SettingError(f"{unkeyed[0]} is not a setting; write KEY=VALUE, or --help.")
    try:
        merged = OmegaConf.merge(OmegaConf.structured(settings), OmegaConf.from_dotlist(list(arguments)))
        return settings(**_tuples(OmegaConf.to_container(merged, enum_to_str=False)))
    except OmegaConfBaseException as error:
        known = ", ".join(one.name for one in fields(settings))  # type: ignore[arg-type]
        said = f"{error.full_key or 'the command line'}: {str(error).splitlines()[0]}"
        raise SettingError(f"{said}. The settings are {known}.") from error


def _tuples(values: Any) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
