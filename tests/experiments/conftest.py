"""Runs of these tests write many pages with the same plots: each is drawn once."""

import pickle

import pytest

from experiments.pages import page


@pytest.fixture(scope="session", autouse=True)
def plots_drawn_once():
    """Remember the file of each plot by its whole content: equal plots are equal files."""
    drawn, draw = {}, page.rendered

    def rendered(*plot):
        key = pickle.dumps(plot)
        if key not in drawn:
            drawn[key] = draw(*plot)
        return drawn[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "rendered", rendered)
        yield
