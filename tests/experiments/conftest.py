"""Runs of these tests write many pages with the same plots: each is drawn once."""

import pickle

import pytest

from experiments.pages import page


@pytest.fixture(scope="session", autouse=True)
def plots_drawn_once():
    """Remember the <svg> element of each drawing by its whole content: equal drawings are equal elements."""
    drawn, draw = {}, page.as_svg

    def as_svg(drawing, name):
        key = pickle.dumps((drawing, name))
        if key not in drawn:
            drawn[key] = draw(drawing, name)
        return drawn[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "as_svg", as_svg)
        yield
