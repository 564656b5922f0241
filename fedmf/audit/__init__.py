"""Tests of what a mechanism gives away by its releases, and lower bounds on epsilon.

    stated      the statement of a stream of releases: noise, sensitivity, bounds, and the map that whitens it
    coupling    two streams with the same secrets, one client in and out: its influence, with certainty
    residual    the noise that is left of releases, against its law
    masks       masks, as releases show them, against theirs
    finding     the outcome of a test, and exact p-values
    bounds      what counted guesses prove about epsilon: Clopper-Pearson, and one run with many canaries

They take any stream of releases with a known strategy matrix, of this project or a custom one:

    from fedmf.audit import Stated, coupled, residuals

    stated = Stated.of_strategy(C, sigma=2.0, l2_norm=1.0, epochs=2)
    findings = residuals(releases, stated, known=sums)           # releases (runs, epochs, T, d)
    findings += coupled(with_client, without_client, stated, own_rounds=[0, 3])
    for finding in findings:
        print(finding.sentence)

An audit cannot prove privacy; it can only refute a statement. docs/audit.md runs these on the real pipeline.
"""

from fedmf.audit.bounds import epsilon_lower_bound, one_run_lower_bound
from fedmf.audit.coupling import coupled
from fedmf.audit.finding import Finding
from fedmf.audit.masks import mask_laws, unmixed
from fedmf.audit.residual import residuals
from fedmf.audit.stated import Stated, StatedEpoch

__all__ = [
    "Finding",
    "Stated",
    "StatedEpoch",
    "coupled",
    "epsilon_lower_bound",
    "mask_laws",
    "one_run_lower_bound",
    "residuals",
    "unmixed",
]
