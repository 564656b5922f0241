"""Figure 1 of the paper, computed again."""

import pytest

from experiments.reproduce import sgmf_figure1

pytestmark = pytest.mark.long


def test_figure_1_matches_the_numbers_computed_apart(tmp_path):
    result = sgmf_figure1.reproduce(tmp_path, "small")
    assert len(result.tables[0].rows) == 15
    assert 0 < result.worst_relative_error < 1e-3
    assert (tmp_path / "sgmf_figure1.png").read_bytes().startswith(b"\x89PNG")
