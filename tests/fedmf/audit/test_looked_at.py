"""Where only some coordinates are looked at, a finding names them by their own numbers, in every row."""

import re

import numpy as np
import pytest

from audited_laws import named
from fedmf.audit import Stated, residual, residuals

FLAT = Stated.of_strategy(np.eye(3), sigma=1.0, l2_norm=1.0, epochs=2)
LATER = np.arange(32, 64)
EVEN = np.arange(0, 64, 2)


def values(runs=30):
    return np.random.default_rng(0).normal(size=(runs, 2, 3, 64))


def quiet(found):
    found[..., 40] *= 0.1


def quiet_entry(found):
    found[:, 1, 2, 40] = 0


def moved_mean(found):
    found[..., 40] += 1


def twins(found):
    found[..., 50] = found[..., 40]


def returning(found):
    found[:, 1, 2, 40] = found[:, 0, 1, 40]


@pytest.mark.parametrize("coordinates", [LATER, LATER.tolist(), slice(32, None), EVEN, EVEN[::-1], None])
@pytest.mark.parametrize(
    ("fault", "test", "where"),
    [
        (quiet, residual.BY_COORDINATE, "coordinate 40"),
        (quiet_entry, residual.BY_ENTRY, "epoch 2, round 3, coordinate 40"),
        (moved_mean, residual.MEAN, "coordinate 40"),
        (returning, residual.IN_COORDINATE, "epoch 1, round 2 and epoch 2, round 3, coordinate 40"),
        (twins, residual.PAIRS, "coordinate 40 and coordinate 50"),
    ],
)
def test_a_coordinate_is_named_by_its_number(coordinates, fault, test, where):
    releases = values()
    fault(releases)
    given = {} if coordinates is None else {"coordinates": coordinates}
    found = named(residuals(releases, FLAT, **given), test)
    assert found.refutes
    assert set(found.where.split(" and ")) == set(where.split(" and "))


@pytest.mark.parametrize(
    ("coordinates", "apart", "directions", "moved"),
    [
        (np.arange(64), "coordinates 8 apart", "coordinates 0 to 63, the", "moved by 8 coordinates"),
        (LATER, "coordinates 8 apart", "coordinates 32 to 63, the", "moved by 8 coordinates"),
        (
            EVEN,
            "coordinates 4 apart among those looked at",
            "coordinates 0 to 62, the",
            "among those looked at",
        ),
    ],
)
def test_distances_are_those_of_all_coordinates_or_said_to_be_of_some(coordinates, apart, directions, moved):
    releases = values()
    releases[..., 8:16] = releases[..., :8]
    releases[..., 40:48] = releases[..., 32:40]
    found = residuals(releases, FLAT, coordinates=coordinates)
    assert named(found, residual.COORDINATES).where == apart
    assert named(found, residual.MAGNITUDES).where == apart
    assert named(found, residual.DIRECTIONS).where.startswith(directions)
    assert named(found, residual.DIRECTIONS).where.endswith("among those looked at") == (len(apart) > 20)
    tiled = values()
    tiled[...] = np.tile(tiled[..., :8], 8)
    assert named(residuals(tiled, FLAT, coordinates=coordinates), residual.SHIFTED).where.endswith(moved)


def test_blocks_of_coordinates_are_named_by_their_numbers():
    releases = np.random.default_rng(1).normal(size=(2, 2, 3, 64))
    releases[..., 41] = 0
    found = residuals(releases, FLAT, coordinates=LATER)
    first, last = map(int, re.findall(r"\d+", named(found, residual.DIRECTIONS).where))
    assert 32 <= first <= 41 <= last <= 63
