"""The eyes of the browser tests are not closed: each fault that they look for is seen on a page that has it."""

import pytest

from seen import Opened

pytestmark = [pytest.mark.browser, pytest.mark.slow]

GOOD = "<!DOCTYPE html><html lang=en><head><title>t</title><link rel=icon href='data:,'></head><body><main><h1>t</h1>{}</main></body></html>"


@pytest.fixture
def look(chromium, tmp_path):
    """A function that opens a page with something on it and returns what is seen."""

    def seen(content):
        file = tmp_path / "page.html"
        file.write_text(GOOD.format(content))
        with Opened(chromium, file, 390, "light") as opened:
            return opened.messages, opened.requests, opened.cut(), opened.faults()

    return seen


def test_a_page_without_faults_has_none(look):
    assert look("<p>text</p><div style='overflow-x:auto' tabindex=0><p style='width:2000px'>wide</p></div>") == (
        [], [], [], []
    )  # fmt: skip


def test_a_message_and_an_error_are_seen(look):
    messages, *_ = look("<script>console.log('hello'); throw new Error('broken')</script>")
    assert messages == ["hello", "broken"]


def test_a_request_is_seen(look):
    _, requests, *_ = look("<img alt='' src='http://127.0.0.1:9/x.png'><img alt='' src='other.png'>")
    assert [address.rsplit("/", 1)[1] for address in requests] == ["x.png", "other.png"]


@pytest.mark.parametrize(
    "content",
    [
        "<p style='width:500px'>wide</p>",
        "<p style='margin-left:-20px'>left</p>",
        "<table style='table-layout:fixed;width:200px'><tr><td style='overflow:hidden'>unbreakable_unbreakable_unbreakable</td><td>x</td></tr></table>",
    ],
)
def test_what_is_cut_is_seen(look, content):
    assert look(content)[2]


def test_a_serious_fault_is_seen(look):
    faults = look("<p style='color:#bbb;background:#fff'>pale</p><img src='data:,'>")[3]
    assert [rule for rule, _ in faults] == ["color-contrast", "image-alt"]
