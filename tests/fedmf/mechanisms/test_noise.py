import numpy as np
import pytest

from fedmf.errors import SettingError
from fedmf.mechanisms import design, prefix_sum
from fedmf.mechanisms.noise import next_noise
from fedmf.randomness import SecretKey

KEY = SecretKey.reproducible(4)


def assert_same(one, other):
    for name, value in vars(one).items():
        np.testing.assert_array_equal(value, getattr(other, name))


@pytest.mark.parametrize("family", ["optimal", "sqrt_toeplitz", "binary_tree", "honaker_full"])
def test_a_round_is_drawn_again_from_a_state_that_was_not_handed_on_and_never_from_one_that_was(family):
    stream = design(family, prefix_sum(6)).stream
    state = stream.init(20)
    for _ in range(6):
        kept = state.buffers.copy()
        row, after = next_noise(stream, state, KEY, dimension=20)
        np.testing.assert_array_equal(state.buffers, kept)
        again, state_again = next_noise(stream, state, KEY, dimension=20)
        assert_same(row, again)
        np.testing.assert_array_equal(after.buffers, state_again.buffers)
        handed_on, last = next_noise(stream, state, KEY, dimension=20, donate=True)
        assert_same(row, handed_on)
        np.testing.assert_array_equal(after.buffers, last.buffers)
        for donate in (False, True):
            with pytest.raises(SettingError, match=f"of step {state.step} was handed on"):
                next_noise(stream, state, KEY, dimension=20, donate=donate)
        state = last
