"""The exact recurrence of the optimum against its dense Gram matrix."""

import numpy as np

from fedmf.mechanisms.optimum import fixed_point, pole_process as pole_process_module
from fedmf.mechanisms.optimum.pole_process import exact_form, pole_process
from fedmf.mechanisms.optimum.poles import poles
from fedmf.mechanisms.streams.recurrence import column_norms
from workloads import dense_strategy, every_workload, precision


@every_workload
def test_exact_recurrence_factors_the_optimal_gram_matrix(workload, monkeypatch):
    """C^T C = H X H with unit diagonal: triangular, unit columns, to rounding once the poles are fine enough."""
    monkeypatch.setattr(pole_process_module, "QUADRATURE", 1e-10)
    solution = fixed_point.solve(workload)
    form = exact_form(pole_process(solution, workload))
    C = dense_strategy(form)
    np.testing.assert_allclose(column_norms(form, workload.rounds), 1, rtol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(C, axis=0), 1, rtol=1e-12)
    assert not np.triu(C, 1).any()
    expansion = poles(solution.interval, 1e-10)
    P = precision(workload)
    X = sum(
        weight * np.linalg.inv(P + shift * np.diag(solution.v))
        for shift, weight in zip(*expansion, strict=True)
    )
    scale = np.sqrt(np.diag(X))
    np.testing.assert_allclose(C.T @ C, X / np.outer(scale, scale), atol=2e-6)
