"""One setting as a field of a frozen dataclass: its default, its meaning and its choices in one place.

    cohort_size: int = setting(64, "n, clients of a round")

What reads settings for people (`--help`, the site) finds the meaning in the field's metadata. The lists of choices of the
library are here, where schemas can use them: this module is cheap to import.
"""

from collections.abc import Collection
from dataclasses import MISSING, field
from typing import Any

ADJACENCIES = ("zero_out", "replace")  # neighbouring relations: `fedmf.accounting.conversion`
ACCOUNTANTS = ("rdp", "tight")
GEOMETRIES = ("l2", "linf")
ROTATIONS = ("hadamard", "identity")
VALUE_TYPES = ("float32", "int8")
SCHEDULES = ("constant", "decay", "cosine", "cooldown", "step")

REQUIRED: Any = MISSING
"""The default of a setting that must be given."""


def setting(default: Any, means: str, choices: Collection[str] = (), **more: Any) -> Any:
    """Return a field with `default`, `REQUIRED` for none, and a noun phrase that says what it `means`.

    `choices` are the values of a text, or of the texts in a list, where they are not free; `more` is metadata of the program's own.
    """
    return field(default=default, metadata={"means": means, "choices": tuple(choices), **more})
