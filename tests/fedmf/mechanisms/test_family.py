"""The door to all families: names, settings and limits."""

import dataclasses

import pytest

from fedmf.errors import SettingError
from fedmf.mechanisms import FAMILIES, Family, design, prefix_sum
from fedmf.mechanisms.families.optimal import OPTIMAL
from fedmf.mechanisms.family import resolve


@pytest.mark.parametrize(
    ("family", "settings", "message"),
    [
        ("optimum", {}, "family is 'optimum'"),
        ("independent", {"buffers": 2}, "independent has no setting buffers; it has none"),
        ("optimal", {"rank": 2}, "optimal has no setting rank; it has buffers"),
        ("banded_toeplitz", {"buffers": -1}, "buffers is -1"),
        ("banded_toeplitz", {"buffers": 5}, "buffers is 5"),
        ("blt", {"buffers": 0}, "buffers is 0"),
        ("blt", {"buffers": 17}, "buffers is 17"),
        ("banded_low_rank", {"bands": 0}, "bands is 0"),
        ("banded_low_rank", {"rank": 6}, "rank is 6"),
        ("optimal", {"buffers": 2.5}, "buffers is 2.5"),
        ("optimal", {"buffers": 0}, "buffers is 0"),
        ("optimal", {"buffers": 6}, "buffers is 6"),
        ("sqrt_blt", {"buffers": 0}, "buffers is 0"),
        ("normalized_sqrt", {"buffers": 25}, "buffers is 25; more than 24 change nothing"),
    ],
)
def test_settings_out_of_range_are_refused(family, settings, message):
    with pytest.raises(SettingError, match=message):
        design(family, prefix_sum(5), **settings)


@pytest.mark.parametrize("family", ["optimal_dense", "honaker_full", "banded_low_rank"])
def test_dense_families_refuse_long_epochs(family):
    workload = prefix_sum(5000)
    assert not resolve(family).suits(workload)
    assert resolve("optimal").suits(workload)
    with pytest.raises(SettingError, match="rounds is 5000"):
        design(family, workload)


def test_a_family_is_taken_by_name_or_by_value():
    by_name, by_value = design("optimal", prefix_sum(9)), design(OPTIMAL, prefix_sum(9))
    assert by_name.fingerprint == by_value.fingerprint
    assert resolve(OPTIMAL) is resolve("optimal")
    assert resolve("banded_low_rank").settings == ("bands", "rank")
    assert dataclasses.replace(OPTIMAL, name="mine", most_rounds=9).suits(prefix_sum(9))
    assert not dataclasses.replace(OPTIMAL, name="mine", most_rounds=8).suits(prefix_sum(9))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_knows_its_own_name_and_settings(name):
    mechanism = design(name, prefix_sum(5), **dict.fromkeys(resolve(name).settings))
    assert mechanism.family == name


def test_names_that_are_taken_or_could_name_no_file_are_refused():
    with pytest.raises(SettingError, match="called 'optimal', as one of this package's is"):
        design(dataclasses.replace(OPTIMAL, most_rounds=8), prefix_sum(5))
    for name in ("", "two words", "../up", "mine:FAMILY", 3):
        with pytest.raises(
            SettingError, match=f"the name of the family is {name!r}; it must be letters, digits"
        ):
            Family(name, OPTIMAL.fit)
