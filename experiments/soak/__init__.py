"""Faults on purpose, and what became of the promises: kills of a simulation, or a whole deployment under ten kinds of fault."""
