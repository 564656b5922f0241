"""Finding out what a mechanism gives away from what it released: tests, and lower bounds on epsilon.

    bounds            what counted guesses prove about epsilon: Clopper-Pearson, and one run with many canaries
    gaussian_bounds   what they prove about mu, where the claim is one Gaussian's whole curve

An audit cannot prove privacy; it can only refute a statement. docs/audit.md plays these against the real pipeline.
"""
