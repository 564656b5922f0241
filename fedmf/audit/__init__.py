"""Finding out what a mechanism gives away from what it released: tests, and lower bounds on epsilon.

    stated            what a stream of releases is stated to be: noise, sensitivity, bounds, and the map that whitens it
    coupling          two streams with the same secrets, one client in and out: its influence, for certain
    residual          the noise that is left of releases, against its law
    shifts            rows that return moved
    grid              noise that was rounded to few digits
    masks             masks, as releases show them, against theirs
    exact             the p-values behind the last two
    detection         which factor in the noise is found how surely
    bounds            what counted guesses prove about epsilon: Clopper-Pearson, and one run with many canaries
    gaussian_bounds   what they prove about mu, where the claim is one Gaussian's whole curve

They take any stream of releases with a known strategy matrix, of this project or of one's own:

    from fedmf.audit import Stated, coupled, residuals

    stated = Stated.of_strategy(C, sigma=2.0, l2_norm=1.0, epochs=2)
    findings = residuals(releases, stated, known=sums)           # releases (runs, epochs, T, d)
    findings += coupled(with_client, without_client, stated, own_rounds=[0, 3])
    for finding in findings:
        print(finding.sentence)

An audit cannot prove privacy; it can only refute a statement. docs/audit.md plays these against the real pipeline.
"""

from fedmf.audit.bounds import epsilon_lower_bound, one_run_lower_bound
from fedmf.audit.coupling import coupled, whole_vector
from fedmf.audit.detection import Power, power
from fedmf.audit.finding import Finding
from fedmf.audit.gaussian_bounds import f_dp_one_run_mu_lower_bound, mu_lower_bound
from fedmf.audit.masks import digits, mask_laws, unmixed
from fedmf.audit.residual import residuals
from fedmf.audit.stated import Stated, StatedEpoch

__all__ = [
    "Finding",
    "Power",
    "Stated",
    "StatedEpoch",
    "coupled",
    "digits",
    "epsilon_lower_bound",
    "f_dp_one_run_mu_lower_bound",
    "mask_laws",
    "mu_lower_bound",
    "one_run_lower_bound",
    "power",
    "residuals",
    "unmixed",
    "whole_vector",
]
