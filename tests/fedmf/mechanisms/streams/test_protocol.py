"""States of a stream as they are saved and loaded."""

import numpy as np
import pytest

from fedmf.errors import SettingError
from fedmf.mechanisms import StreamState


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": np.array(1)}, "format version 1"),
        ({"buffers": np.zeros((2, 3), np.float32)}, "float32 of shape"),
        ({"buffers": np.zeros(3)}, "shape"),
        ({"step": None}, "lacks step"),
    ],
)
def test_states_of_another_format_are_refused(change, message):
    arrays = StreamState(1, np.zeros((2, 3))).to_arrays() | change
    arrays = {name: value for name, value in arrays.items() if value is not None}
    with pytest.raises(SettingError, match=message):
        StreamState.from_arrays(arrays)
