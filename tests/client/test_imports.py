"""Where a user's own code is looked for."""

import sys

import pytest

from client.imports import import_path
from fedmf.errors import SettingError


@pytest.mark.parametrize("fails", [False, True])
def test_the_current_directory_is_looked_in_at_that_import_alone(tmp_path, monkeypatch, fails):
    (tmp_path / "own_code_here.py").write_text(
        "import own_sibling_here\nVALUE = own_sibling_here.VALUE\n" + "1 / 0\n" * fails
    )
    (tmp_path / "own_sibling_here.py").write_text("VALUE = 3\n")
    (tmp_path / "own_other_here.py").write_text("")
    path = [entry for entry in sys.path if entry]
    monkeypatch.setattr(sys, "path", [*path])
    monkeypatch.chdir(tmp_path)
    for name in ("own_code_here", "own_sibling_here"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    if fails:
        with pytest.raises(SettingError, match="ZeroDivisionError"):
            import_path("own_code_here:VALUE", "model")
    else:
        assert import_path("own_code_here:VALUE", "model") == 3
    assert sys.path == path
    with pytest.raises(ModuleNotFoundError):
        __import__("own_other_here")
