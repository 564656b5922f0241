"""Published and independently computed numbers, for prefix sums and momentum."""

import numpy as np
import pytest

from experiments.reproduce.henzinger import henzinger_lower, henzinger_upper
from fedmf.mechanisms import design, lower_bound, momentum, prefix_sum
from fedmf.mechanisms.families.optimal import solve_densely
from fedmf.mechanisms.optimum.fixed_point import certified
from fedmf.mechanisms.workload import gram

# family, rounds: root loss, max error, sensitivity; computed elsewhere from dense float64 matrices.
PREFIX_SUMS = {
    ("binary_tree", 16): (12.84523257866513, 4.47213595499958, 2.23606797749979),
    ("binary_tree", 64): (36.75595189897821, 6.48074069840786, 2.6457513110645907),
    ("binary_tree", 256): (96.04686356149273, 8.48528137423857, 3.0),
    ("binary_tree", 1024): (237.3415260758218, 10.488088481701515, 3.3166247903554),
    ("honaker_online", 16): (10.650717723159936, 3.722518348798681, 2.23606797749979),
    ("honaker_online", 64): (29.218457181355458, 5.154460086309914, 2.6457513110645907),
    ("honaker_online", 256): (74.40236743177176, 6.573623592380231, 3.0),
    ("honaker_online", 1024): (180.7960324246723, 7.989458711039134, 3.3166247903554),
    ("honaker_full", 16): (7.752706281363937, 2.368832439725562, 2.23606797749979),
    ("honaker_full", 64): (20.142448710588848, 3.069294446072639, 2.6457513110645907),
    ("honaker_full", 256): (49.63579635154826, 3.757129893987203, 3.0),
    ("sqrt_toeplitz", 16): (7.187257759140956, 1.9438788471567705, 1.394230557388831),
    ("sqrt_toeplitz", 64): (17.837411772651127, 2.3888481082954347, 1.5455898900728597),
    ("sqrt_toeplitz", 256): (42.70051729896562, 2.831049931861352, 1.682572415042322),
    ("sqrt_toeplitz", 1024): (99.51327702209801, 3.272554150273126, 1.8090202183151867),
    ("optimal_dense", 16): (6.75761472804246, 1.8566841554669138, 1.0),
    ("optimal_dense", 64): (16.798851778089567, 2.302441802113997, 1.0),
}
OPTIMUM = {16: 6.757614728042453, 64: 16.798851778089563, 256: 40.39063065399452, 1024: 94.5744637586766}
CERTIFIED = {
    (1024, 0): 94.5745, (4096, 0): 216.9454,
    (256, 0.9): 256.0609, (1024, 0.9): 651.4561, (512, 0.95): 719.9893,
    (1024, 0.99): 4106.3718,
}  # fmt: skip
# rounds, beta: optimum, its prefix-sum post-processing, square root of M and its sensitivity, Honaker online
MOMENTUM = {
    (32, 0.9): (50.638317728081, 56.031451861269, 55.017920160790, 3.421047265418, 87.575348374298),
    (32, 0.95): (70.066593645977, 77.521499752491, 77.488180186640, 4.163853621777, 119.045936534902),
    (128, 0.9): (155.774092948274, 178.338768014797, 167.012879940151, 4.075601930301, 307.164816397780),
}


@pytest.mark.parametrize(("family", "rounds"), PREFIX_SUMS)
def test_prefix_sum_families_have_their_known_costs(family, rounds):
    mechanism = design(family, prefix_sum(rounds))
    # 1e-6: the deployed tables are rounded to float32.
    assert (mechanism.root_loss, mechanism.max_error, mechanism.sensitivity) == pytest.approx(
        PREFIX_SUMS[family, rounds], rel=1e-6
    )
    if family == "sqrt_toeplitz":
        short = design("sqrt_blt", prefix_sum(rounds))
        found = (short.root_loss, short.max_error, short.sensitivity)
        assert found == pytest.approx(PREFIX_SUMS[family, rounds], rel=2e-4)


@pytest.mark.parametrize("rounds", OPTIMUM)
def test_certificate_encloses_the_known_optimum(rounds):
    solution = certified(prefix_sum(rounds))
    assert solution.lower <= OPTIMUM[rounds] <= solution.upper
    assert solution.upper / solution.lower - 1 <= 0.51e-6


@pytest.mark.parametrize(("rounds", "beta"), CERTIFIED)
def test_certified_optimum_of_long_epochs_and_momentum(rounds, beta):
    solution = certified(momentum(rounds, beta))
    # The numbers are upper ends of an interval of relative width 5e-7, printed to four places.
    assert solution.lower <= CERTIFIED[rounds, beta] + 5e-5
    assert solution.upper == pytest.approx(CERTIFIED[rounds, beta], rel=1.1e-6, abs=6e-5)


@pytest.mark.parametrize(("rounds", "beta"), MOMENTUM)
def test_momentum_families_have_their_known_costs(rounds, beta):
    optimum, processed, square_root, sensitivity, honaker = MOMENTUM[rounds, beta]
    workload = momentum(rounds, beta)
    assert certified(workload).lower <= optimum <= certified(workload).upper * (1 + 1e-9)
    assert design("optimal", workload).root_loss == pytest.approx(optimum, rel=1e-4)
    deployed = design("optimal", prefix_sum(rounds), buffers=8).costed_on(workload)
    # On another workload than its own the loss is not stationary: it moves with the poles of the stream, not their square.
    assert deployed.root_loss == pytest.approx(processed, rel=2e-5)
    assert design("sqrt_toeplitz", workload).root_loss == pytest.approx(square_root, rel=1e-6)
    assert design("sqrt_toeplitz", workload).sensitivity == pytest.approx(sensitivity, rel=1e-6)
    short = design("sqrt_blt", workload)
    assert (short.root_loss, short.sensitivity) == pytest.approx((square_root, sensitivity), rel=2e-4)
    assert design("honaker_online", workload).root_loss == pytest.approx(honaker, rel=1e-6)


def test_optimum_of_two_rounds_is_the_golden_ratio_squared():
    golden = (3 + np.sqrt(5)) / 2
    _, (_, upper) = solve_densely(gram(prefix_sum(2)), gap=1e-14)
    assert upper**2 == pytest.approx(golden, rel=1e-12)
    solution = certified(prefix_sum(2))
    assert solution.lower**2 <= golden <= solution.upper**2


@pytest.mark.parametrize(("rounds", "upper", "lower"), [
    (16, 7.2460544087565335, 5.088292405779251), (64, 18.022278419955494, 13.46665175141363),
    (256, 43.10489604479584, 33.83265345444963), (1024, 100.33047049936138, 81.68486056004528),
])  # fmt: skip
def test_closed_form_bounds_have_their_reference_values_around_the_certificate(rounds, upper, lower):
    assert henzinger_upper(rounds) == pytest.approx(upper, rel=1e-12)
    assert henzinger_lower(rounds) == pytest.approx(lower, rel=1e-12)
    assert lower < lower_bound(prefix_sum(rounds)) < upper


@pytest.mark.parametrize(("rounds", "size", "published"), [(256, 4, 40.472657), (1024, 5, 95.524225)])
def test_low_rank_approximation_is_no_worse_than_the_papers(rounds, size, published):
    mechanism = design("banded_low_rank", prefix_sum(rounds), bands=size, rank=size)
    assert lower_bound(mechanism.workload) < mechanism.root_loss < published


@pytest.mark.parametrize(
    ("rounds", "beta", "buffers"),
    [(1024, 0, 5), pytest.param(4096, 0, 5, marks=pytest.mark.slow), (1024, 0.9, 3)],
)
def test_the_fewest_buffers_that_reach_the_bound_are_taken(rounds, beta, buffers):
    mechanism = design("optimal", momentum(rounds, beta))
    assert mechanism.stream.buffers == buffers
    assert mechanism.root_loss**2 <= 1.0001 * lower_bound(mechanism.workload) ** 2
    fewer = design("optimal", momentum(rounds, beta), buffers=buffers - 1)
    assert fewer.root_loss**2 > 1.0001 * lower_bound(mechanism.workload) ** 2


def test_square_root_is_above_the_published_bound_up_to_six_rounds():
    """Henzinger et al., Theorem 2, fails for T <= 6 and holds from 7 on."""
    for rounds in range(1, 40):
        loss = design("sqrt_toeplitz", prefix_sum(rounds)).root_loss
        assert (loss <= henzinger_upper(rounds)) == (rounds > 6)
