"""Where a user's own code is looked for, and what is reported of an error in it."""

import sys

import pytest
import torch
from omegaconf import OmegaConf

import users_own
from client.imports import import_path, reason
from fedmf.errors import DataError, SettingError


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("", None),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("def f(:", "SyntaxError"),
        ("import nothing_at_all", "ModuleNotFoundError"),
    ],
)
def test_the_current_directory_is_looked_in_at_that_import_alone(tmp_path, monkeypatch, source, error):
    (tmp_path / "own_code_here.py").write_text(
        f"import own_sibling_here\nVALUE = own_sibling_here.VALUE\n{source}\n"
    )
    (tmp_path / "own_sibling_here.py").write_text("VALUE = 3\n")
    (tmp_path / "own_other_here.py").write_text("")
    path = [entry for entry in sys.path if entry]
    monkeypatch.setattr(sys, "path", [*path])
    monkeypatch.chdir(tmp_path)
    for name in ("own_code_here", "own_sibling_here"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    if error is None:
        assert import_path("own_code_here:VALUE", "model") == 3
    else:
        with pytest.raises(
            SettingError, match=f"model is 'own_code_here:VALUE', which cannot be .*: {error}"
        ):
            import_path("own_code_here:VALUE", "model")
    assert sys.path == path
    with pytest.raises(ModuleNotFoundError):
        __import__("own_other_here")


def caught(function, *arguments):
    with pytest.raises(Exception) as info:
        function(*arguments)
    return info.value


def test_a_reason_names_the_users_own_line_and_not_a_librarys():
    said = reason(caught(users_own.WrongInput((8, 8), 10), torch.zeros(2, 8, 8)))
    line = users_own.WrongInput.forward.__code__.co_firstlineno + 1
    assert said.startswith("RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x63 and 64x10) (")
    assert said.endswith(f"users_own.py:{line})")
    assert f"({__file__}:" in reason(caught(lambda: OmegaConf.create({"a": "${b}"}).a))
    assert ".py:" not in reason(caught(torch.ones(2).reshape, 3).with_traceback(None))


class Mute(Exception):
    """An exception that cannot be made a text."""

    def __str__(self):
        raise SystemExit


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (DataError("There is no file."), "There is no file."),
        (ValueError("There is none."), "ValueError: There is none"),
        (ValueError("a\n\x1b[31m" + "b" * 1000), "ValueError: a [31m" + "b" * 294 + ".."),
        (Mute(), "Mute"),
    ],
)
def test_whatever_an_exception_holds_is_one_short_printable_line(error, said):
    assert reason(error) == said
