"""What the theorem does not cover is refused with the reason."""

import pytest

import fedmf.accounting
from fedmf.accounting import check_mask, check_one_participation, check_weighting
from fedmf.accounting.refusals import REFUSED_MASKS, REFUSED_WEIGHTINGS
from fedmf.errors import NotCoveredError, ParticipationError, SettingError


@pytest.mark.parametrize("kind", ["fixed_size", "top_k", "shared", "public", "reused"])
def test_masks_that_are_not_fresh_secret_bernoulli_are_refused(kind):
    with pytest.raises(NotCoveredError, match="use 'bernoulli'") as caught:
        check_mask(kind)
    assert REFUSED_MASKS[kind] in str(caught.value)


@pytest.mark.parametrize("kind", ["examples", "replies"])
def test_weights_that_depend_on_data_are_refused(kind):
    with pytest.raises(NotCoveredError, match="use 'uniform'") as caught:
        check_weighting(kind)
    assert REFUSED_WEIGHTINGS[kind] in str(caught.value)


def test_what_the_theorem_covers_passes():
    check_mask("bernoulli")
    check_weighting("uniform")
    check_one_participation([[1, 2], [3], []])


def test_unknown_kinds_are_setting_errors():
    with pytest.raises(SettingError, match="mask"):
        check_mask("gaussian")
    with pytest.raises(SettingError, match="weighting"):
        check_weighting("loss")


@pytest.mark.parametrize("cohorts", [[[1, 2], [2]], [[1, 1]], [["a"], ["b"], ["a"]]])
def test_two_participations_in_an_epoch_are_refused(cohorts):
    with pytest.raises(ParticipationError, match="one participation per epoch"):
        check_one_participation(cohorts)


def test_every_public_name_exists():
    assert len(set(fedmf.accounting.__all__)) == len(fedmf.accounting.__all__)
    assert all(hasattr(fedmf.accounting, name) for name in fedmf.accounting.__all__)


def test_the_rounds_of_a_second_participation_are_named():
    with pytest.raises(ParticipationError, match="client 'a' takes part in rounds 1 and 2"):
        check_one_participation([["b"], ["a"], ["a"]])
