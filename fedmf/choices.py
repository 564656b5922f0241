"""Every list of choices of the library, once; cheap to import, so that settings and schemas can reuse them."""

from typing import Literal, get_args

Adjacency = Literal["zero_out", "replace"]
"""Which neighbouring relation a statement is about; see `fedmf.accounting.adjacency`."""

ADJACENCIES: tuple[Adjacency, ...] = get_args(Adjacency)
ACCOUNTANTS = ("rdp", "tight")
GEOMETRIES = ("l2", "linf")
ROTATIONS = ("hadamard", "identity")
VALUE_TYPES = ("float32", "int8")
SCHEDULES = ("constant", "decay", "cosine", "cooldown", "step")
