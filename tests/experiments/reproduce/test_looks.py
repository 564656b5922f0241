"""A mechanism looks alike on every page, and unlike every other one on its own."""

from itertools import combinations

import pytest

from experiments.reproduce import denisov_training, sgmf_csgm, sgmf_femnist, sgmf_text, whole_run
from experiments.reproduce.looks import LOOKS

PAGES = {
    "sgmf_femnist": sgmf_femnist.PAGE.mechanisms,
    "sgmf_csgm": sgmf_csgm.PAGE.mechanisms,
    "sgmf_text": sgmf_text.PAGE.mechanisms,
    "denisov_mechanisms": tuple(denisov_training.MECHANISMS),
    "whole_run": tuple(whole_run.MECHANISMS),
}


@pytest.mark.parametrize("page", PAGES)
def test_no_two_mechanisms_of_a_page_look_alike_in_print(page):
    """By colour, or by dash and marker: those remain where colours do not."""
    for a, b in combinations(PAGES[page], 2):
        assert LOOKS[a] != LOOKS[b]
        assert (LOOKS[a].dash, LOOKS[a].marker) != (LOOKS[b].dash, LOOKS[b].marker), (a, b)


def test_the_same_mechanism_is_the_same_colour_and_another_one_is_not():
    same = [
        {"independent", "independent, L2-CSGM", "L2-CSGM, no epochs"},
        {"Linf-CSGM", "Linf-CSGM, narrow"},
        {"honaker_online"},
        {"honaker_full"},
        {"epoch, prefix sums", "optimal, prefix sums"},
        {"epoch, momentum", "optimal, momentum", "SGMF, epoch"},
        {"whole run", "optimal, momentum and cooldown", "SGMF, whole run", "SGMF, whole run, narrow"},
    ]
    assert set().union(*same) == set(LOOKS) == set().union(*PAGES.values())
    colours = [{LOOKS[name].line["color"] for name in names} for names in same]
    assert [len(found) for found in colours] == [1] * len(same)
    assert len(set().union(*colours)) == len(same)
