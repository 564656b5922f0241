"""One setting as a field of a frozen dataclass: its default, its meaning and its choices in one place.

    cohort_size: int = setting(64, "n, clients of a round")

What reads settings for people (`--help`, the site) finds the meaning in the field's metadata, and `check_fields` what its
value must be. The lists of choices of the library are here, where schemas can use them: this module is cheap to import.
"""

from collections.abc import Callable, Collection
from dataclasses import MISSING, field, fields
from typing import Any

from fedmf.checks import check_choice

ADJACENCIES = ("zero_out", "replace")  # neighbouring relations: `fedmf.accounting.conversion`
ACCOUNTANTS = ("rdp", "tight")
GEOMETRIES = ("l2", "linf")
ROTATIONS = ("hadamard", "identity")
VALUE_TYPES = ("float32", "int8")
SCHEDULES = ("constant", "decay", "cosine", "cooldown", "step")

# The default of a setting that must be given.
REQUIRED: Any = MISSING


def setting(
    default: Any,
    means: str,
    choices: Collection[str] = (),
    check: Callable[[str, Any], None] | None = None,
    **more: Any,
) -> Any:
    """Return a field with `default`, `REQUIRED` for none, and a noun phrase that says what it `means`.

    `choices` are the values of a text, or of the texts in a list; `check` is given name and value and raises, in place of the
    choices where these are not all. `more` is metadata of the program's own.
    """
    return field(
        default=default, metadata={"means": means, "choices": tuple(choices), "check": check, **more}
    )


def check_fields(settings: Any) -> None:
    """Raise `SettingError` for a field of a dataclass that is none of its choices, or that its check does not allow.

    None is allowed where it is the default.
    """
    for item in fields(settings):
        value, check = getattr(settings, item.name), item.metadata.get("check")
        if value is None and item.default is None:
            continue
        if check is not None:
            check(item.name, value)
        elif item.metadata.get("choices"):
            for one in value if isinstance(value, tuple) else (value,):
                check_choice(item.name, one, item.metadata["choices"])
