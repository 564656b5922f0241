"""Finding out what a mechanism gives away from what it released: tests, and lower bounds on epsilon.

    bounds      what counted guesses prove: Clopper-Pearson, and one run with many canaries

An audit cannot prove privacy; it can only refute a statement. docs/audit.md plays these against the real pipeline.
"""
