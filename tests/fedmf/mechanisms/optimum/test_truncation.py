"""The truncation against the exact recurrence."""

import numpy as np

from fedmf.mechanisms import momentum
from fedmf.mechanisms.optimum import fixed_point
from fedmf.mechanisms.optimum.pole_process import exact_form, innovations, pole_process
from fedmf.mechanisms.optimum.truncation import truncate
from workloads import dense_strategy, every_workload


@every_workload
def test_truncation_to_many_buffers_changes_nothing(workload):
    process = pole_process(fixed_point.solve(workload), workload)
    inner = innovations(process)
    reduced = truncate(process, inner, 12)
    np.testing.assert_allclose(dense_strategy(reduced), dense_strategy(exact_form(process)), atol=1e-5)


def test_truncation_does_not_depend_on_chunks(monkeypatch):
    workload = momentum(50, 0.8)
    process = pole_process(fixed_point.solve(workload), workload)
    inner = innovations(process)
    whole = dense_strategy(truncate(process, inner, 3))
    monkeypatch.setattr("fedmf.mechanisms.optimum.truncation.CHUNK", 7)
    np.testing.assert_allclose(dense_strategy(truncate(process, inner, 3)), whole, atol=1e-9)
