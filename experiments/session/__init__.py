"""One run from its first state to its report."""
