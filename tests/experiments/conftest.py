"""Runs of these tests write many pages with the same plots: each is drawn once."""

import hashlib
import pickle
from dataclasses import replace
from math import isfinite

import pytest

from experiments.pages import page


@pytest.fixture(scope="session", autouse=True)
def plots_drawn_once():
    """Draw one of the plots that differ only in finite numbers; the file of each ends with a digest of its whole content."""
    drawn, draw = {}, page.rendered

    def rendered(plot, *given):
        lines = [(one.label, {*map(isfinite, one.y)}, one.error is None) for one in plot.series]
        key = pickle.dumps((replace(plot, caption="", series=lines), given))
        if key not in drawn:
            drawn[key] = draw(plot, *given)
        digest = hashlib.sha256(pickle.dumps(plot)).hexdigest()
        return drawn[key] + f"<!-- {digest} -->".encode()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "rendered", rendered)
        yield
