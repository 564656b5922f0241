"""A page is written by hand; the command replaces what is between its marks, and every other byte stays."""

import pytest

from experiments.reproduce import page
from fedmf.errors import SettingError

PAGE = "# Mine\r\n\n<!-- reproduce: a: one -->\nold\n<!-- /reproduce -->\nBetween.\n<!-- reproduce: b: two -->\n<!-- /reproduce -->\nEnd"


def test_only_what_is_between_the_marks_is_replaced(tmp_path):
    path = tmp_path / "p.md"
    path.write_bytes(PAGE.encode())
    page.update(path, "reproduce", {"a: one": "new", "a: other": "not shown"})
    text = path.read_bytes().decode()
    assert text == PAGE.replace("\nold\n", "\n\nnew\n\n")
    page.update(path, "reproduce", {"a: one": "new"})
    assert path.read_bytes().decode() == text
    page.update(path, "benchmark", {})
    assert path.read_bytes().decode() == text


def test_a_page_that_has_no_mark_yet_gets_all_at_its_end(tmp_path):
    page.update(tmp_path / "p.md", "reproduce", {"a: one": "1", "a: two": "2"})
    first = (tmp_path / "p.md").read_text()
    page.update(tmp_path / "p.md", "reproduce", {"c: one": "3"})
    text = (tmp_path / "p.md").read_text()
    assert text.startswith(first)
    assert [line for line in text.splitlines() if line in "123" and line] == ["1", "2", "3"]


def test_a_mark_without_an_end_is_an_error_and_nothing_is_written(tmp_path):
    path = tmp_path / "p.md"
    path.write_text("<!-- reproduce: a: one -->\nrest of my page")
    with pytest.raises(SettingError, match="lacks <!-- /reproduce --> after it"):
        page.update(path, "reproduce", {"a: one": "1"})
    assert path.read_text().endswith("rest of my page")
