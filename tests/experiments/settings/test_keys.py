"""What the library says of an argument reaches the command line as the key that its user typed."""

import pytest

from experiments.settings.keys import advising_to_resume, keyed
from experiments.settings.values import at_home
from fedmf.errors import DataError, ParticipationError, RunStoppedError, SettingError
from fedmf.participation import rounds_that_fit
from runs import composed


def test_an_argument_becomes_the_key_and_the_error_keeps_its_type():
    with (
        pytest.raises(SettingError, match=r"^population\.cohort_size is 0"),
        keyed("population", ("cohort_size",)),
    ):
        rounds_that_fit(10, 0)
    with pytest.raises(ParticipationError, match="at most 10 fits"), keyed("population", ("cohort_size",)):
        rounds_that_fit(10, 11)


def test_sentences_that_begin_with_no_argument_and_other_errors_stay():
    for error in (DataError("The file path is wrong"), ValueError("path is 3")):
        with pytest.raises(type(error)) as caught, keyed("dataset", ("path",)):
            raise error from OSError("disk")
        assert (str(caught.value), type(caught.value.__cause__)) == (str(error), OSError)


def test_a_stopped_run_says_once_how_to_resume_it():
    for text in ("too few replies.", "too few replies. Go on with run.resume=true."):
        with pytest.raises(RunStoppedError) as caught, advising_to_resume():
            raise RunStoppedError(text)
        assert str(caught.value) == "too few replies. Go on with run.resume=true."


def test_a_tilde_at_the_head_of_a_value_is_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert composed("dataset=femnist", "dataset.path=~/.tff").dataset.path == "/home/ann/.tff"
    assert at_home(["run.directory=~", "+a.b=~/c"]) == ["run.directory=/home/ann", "+a.b=/home/ann/c"]
    for override in ("~dataset", "a=b~/c", "a='~/b'", "a=[~/b]"):  # left to Hydra
        assert at_home([override]) == [override]
