import numpy as np
import pytest

from fedmf.errors import SettingError
from fedmf.updates.vectors import Layout

ARRAYS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(7, np.float32)}


def test_splitting_undoes_flattening():
    layout = Layout.of(ARRAYS)
    flat = layout.flatten(ARRAYS)
    assert flat.shape == (layout.dimension,) == (7,)
    for name, array in layout.split(flat).items():
        np.testing.assert_array_equal(array, ARRAYS[name])


def test_split_copies_nothing():
    flat = np.zeros(7, np.float32)
    Layout.of(ARRAYS).split(flat)["a"][0, 0] = 1
    assert flat[0] == 1


def test_refuses_other_shapes_and_lengths():
    layout = Layout.of(ARRAYS)
    with pytest.raises(SettingError):
        layout.flatten({"a": np.zeros(6, np.float32), "b": np.zeros((), np.float32)})
    with pytest.raises(SettingError, match="7 parameters"):
        layout.split(np.zeros(8, np.float32))


def test_arrays_of_any_type_become_one_float32_vector():
    layout = Layout(("a", "b"), ((2,), (1, 2)))
    flat = layout.flatten({"a": np.array([1.0, 2.0]), "b": np.array([[3, 4]])})
    assert flat.dtype == np.float32
    assert flat.tolist() == [1, 2, 3, 4]
