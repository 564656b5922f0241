"""Valid small files with bytes flipped, cut out, doubled or swapped: a sentence, or data that pass every check."""

import random
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import small_files
from client.data import CLASSIFICATION, IGNORED_TARGET, Dataset, Examples, load
from fedmf.errors import DataError, SettingError

# Not HDF5: its library does not return from the reading of some altered files.
FORMS = sorted(form for form in small_files.FORMS if not form.endswith("hdf5"))
EXAMPLES = 30


def mutated(data: bytes, kind: str, places: random.Random) -> bytes:
    """Return `data` with one kind of damage."""
    if not data:
        return data
    start, stop = sorted(places.randrange(len(data) + 1) for _ in "ab")
    match kind:
        case "flips":
            changed = bytearray(data)
            for _ in range(places.choice([1, 3, 30])):
                changed[places.randrange(len(data))] ^= 1 << places.randrange(8)
            return bytes(changed)
        case "end":
            return data[:stop]
        case "hole":
            return data[:start] + data[stop:]
        case "twice":
            return data[:stop] + data[start:]
        case "swap":
            return data[stop:] + data[start:stop] + data[:start]
        case "zeros":
            return data[:start] + bytes(stop - start) + data[stop:]
        case "numbers":  # in texts: another length, sign or size
            return data.replace(
                str(places.randrange(10)).encode(), places.choice([b"-1", b"1e999", b"null", b"9" * 30, b""])
            )
    raise AssertionError(kind)


def try_all(loaded: Dataset) -> None:
    """Look at all that a run would train and be scored on; a client may say why it cannot be read."""
    right(loaded, loaded.test)
    for i in range(len(loaded.clients)):
        if isinstance(found := outcome(loaded.clients.__getitem__, i), Examples):
            right(loaded, found)


def outcome(call, *arguments, **settings):
    """Return what a call returns, or the sentence of the error that it raises on purpose."""
    try:
        return call(*arguments, **settings)
    except (DataError, SettingError) as error:
        said = str(error)
    assert said.endswith(".")
    return said


def right(loaded: Dataset, examples: Examples) -> None:
    """Fail unless examples can be trained on: shapes, types and ranges as torch needs them."""
    x, y = examples.x, examples.y
    assert len(x) == len(y) > 0
    assert x.shape[1:] == loaded.input_shape
    if loaded.task == CLASSIFICATION:
        assert (x.dtype, y.dtype, y.shape) == (np.float32, np.int64, (len(x),))
        assert np.isfinite(x).all()
        assert set(y.tolist()) <= set(range(loaded.classes))
    else:
        assert (x.dtype, y.dtype, y.shape) == (np.int64, np.int64, x.shape)
        assert set(x.ravel().tolist()) <= set(range(loaded.classes))
        assert set(y.ravel().tolist()) <= {IGNORED_TARGET, *range(loaded.classes)}


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    """Valid files of every form, written once."""
    return {form: small_files.settings(form, tmp_path_factory.mktemp(form)) for form in FORMS}


@pytest.mark.filterwarnings("default")  # a parser may warn of what it then reads or refuses
@pytest.mark.parametrize("form", FORMS)
def test_a_mutated_file_is_a_sentence_or_a_valid_data_set(
    valid: dict[str, dict[str, object]], form: str
) -> None:
    @settings(max_examples=EXAMPLES, database=None)
    @given(
        kind=st.sampled_from(["flips", "end", "hole", "twice", "swap", "zeros", "numbers"]),
        seed=st.integers(0, 2**32),
    )
    def attempt(kind: str, seed: int) -> None:
        places = random.Random(seed)
        source = Path(str(valid[form]["path"]))
        with TemporaryDirectory() as folder:  # of its own: open files are remembered by their names
            path = Path(folder) / source.name
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, path)
            files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
            file = places.choice(files)
            file.write_bytes(mutated(file.read_bytes(), kind, places))
            loaded = outcome(load, **valid[form] | {"path": str(path)})
            if isinstance(loaded, Dataset):
                try_all(loaded)

    attempt()
