"""The audit of a mechanism of one's own, as docs/audit.md shows it: any stream whose matrix is known."""

import re
from pathlib import Path

import numpy as np

from fedmf.audit import Stated, coupled, residuals
from fedmf.audit.residual import CORRELATION
from oracles import named, refuted

ROOT = Path(__file__).resolve().parents[3]

# The example begins.
C = np.eye(6) + 0.5 * np.eye(6, k=-1)  # a banded strategy matrix; its largest column norm is accounted


def my_server(sums, rng, sigma=2.0, forgets=False):
    """Release the sums (T, d) of an epoch under the noise sigma C^-1 Z, round by round."""
    noise = np.zeros(sums.shape[1])
    for step, total in enumerate(sums):
        noise = sigma * rng.normal(size=len(noise)) - (0.0 if forgets and step == 3 else 0.5) * noise
        yield total + noise


stated = Stated.of_strategy(C, sigma=2.0, l2_norm=1.0)
sums = np.zeros((6, 64))
releases = np.array([[list(my_server(sums, np.random.default_rng(run)))] for run in range(50)])
findings = residuals(releases, stated)  # runs, epochs, rounds, coordinates

sums[2, :4] = 0.5  # one client's vector, of norm 1, in round 3
inside, outside = (np.array([list(my_server(s, np.random.default_rng(0)))]) for s in (sums, 0 * sums))
findings += coupled(inside, outside, stated, own_rounds=[2], tolerance=1e-12)
# The example ends.


def test_an_honest_mechanism_of_ones_own_is_not_refuted():
    assert refuted(findings) == set()


def test_one_that_forgets_a_row_of_its_noise_is_found_by_the_correlation_of_its_rounds():
    broken = np.array(
        [[list(my_server(0 * sums, np.random.default_rng(run), forgets=True))] for run in range(50)]
    )
    found = residuals(broken, stated)
    assert CORRELATION in refuted(found)
    assert named(found, CORRELATION).where.startswith("rounds 2")


def test_the_example_is_the_one_of_the_document():
    source = Path(__file__).read_text()
    example = re.search(r"# The example begins\.\n(.*?)# The example ends\.", source, re.DOTALL)
    assert example is not None
    page = (ROOT / "docs" / "audit.md").read_text()
    lines = [line.strip() for line in example[1].splitlines() if line.strip()]
    shown = [line.strip() for line in page.splitlines()]
    assert [line for line in lines if line not in shown] == []
