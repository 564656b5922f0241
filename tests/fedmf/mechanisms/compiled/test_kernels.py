"""The compiled kernels against their twins in plain numpy."""

import numpy as np
import pytest

from fedmf.mechanisms import compiled, momentum, of_run, prefix_sum
from fedmf.mechanisms.compiled import kernels
from fedmf.mechanisms.families import optimal
from fedmf.mechanisms.optimum import fixed_point
from fedmf.mechanisms.optimum.pole_process import exact_form, innovations, pole_process
from fedmf.mechanisms.optimum.poles import poles
from fedmf.mechanisms.optimum.smoother import behind, filters_in_numpy, filters_of_one_state, tridiagonal
from fedmf.mechanisms.optimum.truncation import observe, reach
from fedmf.mechanisms.schedules import rates
from fedmf.mechanisms.streams.recurrence import carry, column_norms


def test_kernels_do_what_their_twins_do():
    """Run as plain Python where numba has compiled them, so that no compiler is needed."""
    workload = of_run(12, 3, 0.9, rates("cooldown", 36))[1]
    solution = fixed_point.solve(workload)
    expansion = poles(solution.interval, 1e-6)
    arguments = (solution.v, np.array(workload.learning_rates), 0.9, behind(workload), *expansion)
    steps, total, last = plain("filters")(*arguments)
    for found, expected in zip(
        (steps, total, last), filters_in_numpy(solution.v, workload, expansion), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-9)
    np.testing.assert_allclose(plain("diagonal")(*arguments), total, rtol=1e-12)
    one_state = (solution.v, 24.0, *expansion)
    np.testing.assert_allclose(plain("tridiagonal")(*one_state), tridiagonal(*one_state), rtol=1e-12)
    process = pole_process(solution, workload)
    inner = innovations(process)
    lam, c = plain("innovations")(*list(vars(process).values())[:-1])
    np.testing.assert_allclose(lam, inner.lam, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(c, inner.c, rtol=1e-9)
    form = exact_form(process)
    norms = plain("column_norms")(form.F, form.g, form.lam, form.c, 12)
    np.testing.assert_allclose(norms, column_norms(form, 12), rtol=1e-12)
    rng = np.random.default_rng(0)
    transition, added = rng.normal(size=(2, 12, 4, 4))
    added = added @ added.swapaxes(1, 2)
    variances, expected = np.empty((2, 12))
    covariance = plain("output_variances")(transition, added, np.eye(4), variances)
    np.testing.assert_allclose(covariance, carry(transition, added, np.eye(4), expected), rtol=1e-9)
    np.testing.assert_allclose(variances, expected, rtol=1e-9)
    for name, twin in (("observe", observe), ("reach", reach)):
        arguments = (process.transition, inner.lam, 0 * form.F[0])
        np.testing.assert_allclose(plain(name)(*arguments), twin(*arguments), atol=1e-12)


def test_designs_that_numpy_finishes_while_a_compiler_starts_ask_for_none(monkeypatch):
    """Cold, the kernels together take six seconds to load and compile; numpy takes one for these rounds."""

    def no_compiler():
        raise AssertionError("numba was asked for")

    monkeypatch.setattr(compiled, "available", no_compiler)
    assert optimal.fit(prefix_sum(4500)).sensitivity == pytest.approx(1, abs=1e-5)
    with pytest.raises(AssertionError, match="numba was asked for"):
        compiled.kernel("tridiagonal", 2**15)


@pytest.mark.parametrize("workload", [prefix_sum(40), of_run(20, 2, 0.0, tuple(np.linspace(1, 0.2, 40)))[0]])
def test_one_state_needs_no_filter_of_two(workload):
    """Rates that differ and rounds behind the epoch included."""
    solution = fixed_point.solve(workload)
    expansion = poles(solution.interval, 1e-6)
    for found, expected in zip(
        filters_of_one_state(solution.v, workload, expansion),
        filters_in_numpy(solution.v, workload, expansion),
        strict=True,
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-300)


def plain(name):
    function = getattr(kernels, name)
    return getattr(function, "py_func", function)


@pytest.mark.slow
@pytest.mark.parametrize(
    "workload",
    [prefix_sum(60), momentum(60, 0.9, rates("cooldown", 60)), of_run(60, 3)[0], of_run(60, 3, 0.9)[0]],
    ids=["prefix_sum", "momentum", "run", "run_with_momentum"],
)
def test_results_are_the_same_with_and_without_compiled_code(workload, monkeypatch):
    monkeypatch.setattr(compiled, "WORTHWHILE", dict.fromkeys(compiled.WORTHWHILE, 1))
    solution, arrays = fixed_point.solve(workload), optimal.fit(workload)
    monkeypatch.setattr(compiled, "available", lambda: False)
    assert compiled.kernel("diagonal", 10**6) is None
    plain, plain_arrays = fixed_point.solve(workload), optimal.fit(workload)
    assert solution.upper == pytest.approx(plain.upper, rel=1e-9)
    assert solution.lower == pytest.approx(plain.lower, rel=1e-9)
    assert arrays.sensitivity == pytest.approx(plain_arrays.sensitivity, rel=1e-6)
    np.testing.assert_allclose(arrays.per_round_error, plain_arrays.per_round_error, rtol=1e-5)
