from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

import own_models
from client.reasons import reason
from fedmf.errors import DataError


def caught(function, *arguments):
    with pytest.raises(Exception) as info:
        function(*arguments)
    return info.value


def test_a_reason_names_the_users_own_line_and_not_torchs():
    model = own_models.WrongInput((8, 8), 10)
    said = reason(caught(model, torch.zeros(2, 8, 8)))
    line = own_models.WrongInput.forward.__code__.co_firstlineno + 1
    assert said.startswith("RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x63 and 64x10) (")
    assert said.endswith(f"own_models.py:{line})")


def test_a_reason_names_no_line_where_no_code_of_the_users_is_to_blame():
    assert reason(caught(torch.ones(2).reshape, 3)).startswith("RuntimeError: shape '[3]' is invalid")
    assert ".py:" not in reason(caught(torch.nn.Linear(3, 2), torch.zeros(2, 4)).with_traceback(None))


def test_a_reason_names_the_users_line_behind_which_another_library_raised():
    said = reason(caught(lambda: OmegaConf.create({"a": "${b}"}).a))
    assert said.startswith("InterpolationKeyError: ")
    assert "(tests/client/test_reasons.py:" in said.replace(str(Path(__file__).parents[2]) + "/", "")


def test_an_error_of_ours_is_its_own_sentence():
    assert reason(DataError("There is no file.")) == "There is no file."


def test_a_sentence_of_others_brings_no_full_stop_of_its_own():
    assert reason(ValueError("There is none.")) == "ValueError: There is none"


def test_whatever_an_exception_says_is_one_short_printable_line():
    said = reason(ValueError("a\n\x1b[31m" + "b" * 1000))
    assert said.startswith("ValueError: a [31mbbb")
    assert len(said) < 330


def test_an_exception_that_cannot_say_what_it_is_has_a_reason_too():
    class Mute(Exception):
        def __str__(self):
            raise SystemExit

    assert reason(Mute()) == "Mute"
