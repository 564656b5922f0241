"""What is refused as a lower triangular matrix."""

import numpy as np
import pytest

from fedmf.errors import SettingError
from fedmf.mechanisms.arrays import check_lower_triangular


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.ones((2, 3)), "square"),
        (np.ones(3), "square"),
        (np.array([[1.0, 0.0], [np.nan, 1.0]]), "finite"),
        (np.ones((2, 2)), "lower triangular"),
        (np.array([[1.0, 0.0], [1.0, 0.0]]), "invertible"),
    ],
)
def test_bad_matrices_are_refused(matrix, message):
    with pytest.raises(SettingError, match=message):
        check_lower_triangular("the workload", matrix)
