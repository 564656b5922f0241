"""What the library says of an argument reaches the command line as the key that its user typed."""

import pytest

from experiments.settings.data import load_dataset
from experiments.settings.keys import advising_to_resume, keyed, with_keys
from experiments.settings.schema import PopulationSettings
from fedmf.errors import DataError, ParticipationError, RunStoppedError, SettingError
from fedmf.participation import rounds_that_fit
from fedmf.plan import PrivacyTarget


def test_an_argument_becomes_the_key_and_the_error_keeps_its_type():
    with (
        pytest.raises(SettingError, match=r"^population\.cohort_size is 0; it must"),
        keyed("population", PopulationSettings),
    ):
        rounds_that_fit(10, 0)
    with (
        pytest.raises(ParticipationError, match=r"but there are only 10 clients; at most 10 fits\.$"),
        keyed("population", PopulationSettings),
    ):
        rounds_that_fit(10, 11)


def test_every_mention_becomes_a_key_and_what_is_to_be_typed_is_yaml():
    with pytest.raises(SettingError) as caught, keyed("privacy", ("epsilon", "noise_multiplier", "delta")):
        PrivacyTarget(delta=1e-5)
    assert str(caught.value) == (
        "privacy.epsilon is None and privacy.noise_multiplier is None; "
        "give exactly one of them and set the other to null."
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("path must name a file", "dataset.path must name a file"),
        ("set path to a folder; or set download=True.", "set dataset.path to a folder; or set dataset.download=true."),
        ("/data/path/x has no path in 3 clients", "/data/path/x has no path in 3 clients"),
        ("dataset.path is wrong", "dataset.path is wrong"),
        ("vocabulary_size is 0 without vocabulary", "dataset.vocabulary_size is 0 without vocabulary"),
        ("level is 'path'", "dataset.level is 'path'"),
        ("size is 3; it takes path, seed.", "size is 3; it takes dataset.path, dataset.seed."),
        ("size is 3; it takes group.path, group.seed.", "size is 3; it takes group.path, group.seed."),
        ("size is 3; it takes group.sub.seed.", "size is 3; it takes group.sub.seed."),
        ("size is 3; it takes no settings.", "size is 3; it takes no settings."),
        ("size is missing; it is needed.", "dataset.size is missing; it is needed."),
        ("level is None; set path=None or download to False.", "dataset.level is None; set dataset.path=null or download to false."),
        ("seed is True, but the run has None", "seed is True, but the run has None"),
    ],
)  # fmt: skip
def test_a_word_is_replaced_only_where_it_names_an_argument(text, said):
    assert with_keys(text, "dataset", ("path", "download", "level", "vocabulary", "vocabulary_size")) == said


def test_an_argument_may_have_a_key_of_another_name_and_groups_may_nest():
    with (
        pytest.raises(SettingError, match=r"^engine\.node_timeout is 0, population\.min_available=3$"),
        keyed("population", {"min_available": "min_available"}),
        keyed("engine", {"timeout": "node_timeout"}),
    ):
        raise SettingError("timeout is 0, min_available=3")


def test_other_errors_pass_as_they_are():
    with pytest.raises(ValueError, match=r"^epochs is 0$"), keyed("population", PopulationSettings):
        raise ValueError("epochs is 0")


def test_an_error_keeps_its_cause():
    cause = OSError("disk")
    with pytest.raises(DataError) as caught, keyed("dataset", ("path",)):
        raise DataError("path is wrong") from cause
    assert caught.value.__cause__ is cause


def test_a_stopped_run_says_once_how_it_goes_on():
    for text in ("too few replies.", "too few replies. Go on with run.resume=true."):
        with (
            pytest.raises(RunStoppedError, match=r"^too few replies\. Go on with run\.resume=true\.$"),
            advising_to_resume(),
        ):
            raise RunStoppedError(text)
    with pytest.raises(DataError, match=r"^no data$"), advising_to_resume():
        raise DataError("no data")


def test_what_a_data_set_says_of_itself_names_keys(tmp_path):
    lines = [f'{{"user": "u{number % 3}", "text": "a b c"}}\n' for number in range(30)]
    (tmp_path / "texts.jsonl").write_text("".join(lines))
    dataset = load_dataset(
        {"name": "by_user_text", "path": str(tmp_path / "texts.jsonl"), "vocabulary": None}
    )
    assert dataset.uncovered[0].endswith("Give a public file as dataset.vocabulary.")
    with pytest.raises(DataError, match=r"^The data file nowhere does not exist; dataset\.path must name"):
        load_dataset({"name": "by_user_text", "path": "nowhere"})
    with pytest.raises(SettingError, match=r"^dataset\.name is 'nowhere:load', which cannot be imported"):
        load_dataset({"name": "nowhere:load"})


def test_a_word_that_only_contains_an_argument_stays():
    for text in (
        "cohort_sizes is 3",
        "my_cohort_size is 3",
        "a/cohort_size/b",
        "x.cohort_size is 3",
        "cohort_size's",
    ):
        assert with_keys(text, "population", ("cohort_size",)) == text
    both = with_keys("rounds_per_epoch is 3, rounds=2", "population", ("rounds", "rounds_per_epoch"))
    assert both == "population.rounds_per_epoch is 3, population.rounds=2"
