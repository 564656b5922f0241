"""The dense matrices of a run, and the time that its design took."""

from dataclasses import replace

import numpy as np
import pytest

from fedmf.mechanisms import FAMILIES, design_run, family, of_run
from fedmf.mechanisms.optimum.fixed_point import certified_run
from fedmf.mechanisms.schedules import rates


@pytest.mark.parametrize("name", FAMILIES)
def test_dense_matrices_of_a_run_multiply_to_its_workload_and_have_its_errors(name):
    run = design_run(name, of_run(5, 3, 0.8, rates("cosine", 15)))
    B, C = run.materialize()
    A = np.zeros((15, 15))
    for t, s in zip(*np.tril_indices(15), strict=True):
        A[t, s] = sum(rates("cosine", 15)[u] * 0.8 ** (u - s) for u in range(s, t + 1))
    np.testing.assert_allclose(B @ C, A, atol=1e-6 * A.max())
    scale = np.repeat([epoch.sensitivity for epoch in run.epochs], len(C) // 3)
    np.testing.assert_allclose(np.linalg.norm(B * scale, axis=1), run.per_round_error, rtol=1e-5)


def test_the_time_of_a_run_counts_the_solver_and_does_not_name_its_results(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDMF_CACHE", str(tmp_path))
    workloads = of_run(6, 3)
    first = design_run("optimal", workloads)
    files = set(tmp_path.iterdir())
    solutions = certified_run(workloads)
    assert all(solution.seconds > 0 for solution in solutions)
    longer = [replace(solution, seconds=solution.seconds + 100) for solution in solutions]
    monkeypatch.setattr(family, "certified_run", lambda _: longer)
    assert design_run("optimal", workloads).seconds == pytest.approx(first.seconds + 300)
    assert set(tmp_path.iterdir()) == files
