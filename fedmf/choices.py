"""Every list of choices of the library, once; cheap to import, so that settings and schemas can reuse them."""

ADJACENCIES = ("zero_out", "replace")  # neighbouring relations: `fedmf.accounting.conversion`
ACCOUNTANTS = ("rdp", "tight")
GEOMETRIES = ("l2", "linf")
ROTATIONS = ("hadamard", "identity")
VALUE_TYPES = ("float32", "int8")
SCHEDULES = ("constant", "decay", "cosine", "cooldown", "step")
