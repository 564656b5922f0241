"""Every page in a headless browser: silent, complete in itself, nothing cut, readable with a screen reader."""

import io

import pytest
from PIL import Image

from pages_of_runs import LONG_NAME, LONG_UNIT, RUNS
from seen import SCHEMES, WIDTHS, Opened

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PAGES = (*RUNS, "long_unit", "comparison", "long_comparison")


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_page_says_and_asks_nothing_cuts_nothing_and_has_no_serious_fault(
    chromium, pages, name, width, scheme
):
    with Opened(chromium, pages[name], width, scheme) as opened:
        assert opened.messages == []
        assert opened.requests == []
        assert opened.cut() == []
        assert opened.out_of_sight() == []
        assert opened.faults() == []


@pytest.mark.parametrize("width", [390, 1280])
def test_the_summary_keeps_its_values_and_sources_beside_a_long_unit(chromium, pages, width):
    with Opened(chromium, pages["long_unit"], width, "light") as opened:
        row = opened.page.locator("table.sourced tr", has_text="summary.json: unit_of_privacy").first
        what, value, source = (cell.bounding_box() for cell in row.locator("td").all())
        assert row.locator("td").nth(1).inner_text() == LONG_UNIT
        table = opened.box("table.sourced")
        for box in (what, value, source):
            assert box["width"] >= 0.2 * table["width"]
            assert table["x"] - 1 <= box["x"]
            assert box["x"] + box["width"] <= table["x"] + table["width"] + 1
        # "from" is read in one line: two at most
        assert source["height"] <= (30 if width == 390 else row.bounding_box()["height"])
        assert row.locator("td").nth(2).evaluate(
            "cell => { const range = document.createRange(); range.selectNodeContents(cell); "
            "return range.getClientRects().length }"
        ) <= 2  # fmt: skip


@pytest.mark.parametrize("name", ["private", "cut_users"])
def test_the_first_screen_holds_result_and_accuracy_and_where_there_is_room_epsilon(chromium, pages, name):
    with Opened(chromium, pages[name], 1280, "light", height=800) as opened:
        figures = opened.page.locator(".key .value").all()
        assert len(figures) == 3
        for box in (
            *(figure.bounding_box() for figure in figures),
            opened.box("img[aria-describedby=accuracy_by_round-caption]"),
            opened.box("img[aria-describedby=epsilon_by_round-caption]"),
        ):
            assert box["y"] + box["height"] <= 800
        assert "at delta" in opened.page.locator(".key").inner_text()
    with Opened(chromium, pages[name], 390, "light") as opened:
        assert opened.box("img[aria-describedby=accuracy_by_round-caption]")["y"] < 844


@pytest.mark.parametrize("width", [390, 768])
def test_a_narrow_comparison_names_every_value_of_a_row(chromium, pages, width):
    with Opened(chromium, pages["long_comparison"], width, "light") as opened:
        row = opened.page.locator("table.plain tbody tr").first
        names = [
            cell.evaluate("cell => getComputedStyle(cell, '::before').content.slice(1, -1)")
            for cell in row.locator("td").all()
        ]
        assert {"mechanism", "accuracy", "epsilon spent", "compression", "values sent"} <= set(names)
        assert LONG_NAME in row.inner_text()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_plot_is_drawn_dark_on_light_whatever_the_scheme_of_the_page(chromium, pages, scheme):
    with Opened(chromium, pages["private"], 1280, scheme) as opened:
        for plot in opened.page.locator("figure img").all():
            picture = Image.open(io.BytesIO(plot.screenshot())).convert("L")
            low, high = picture.getextrema()
            assert low < 40  # the text
            assert high == 255
            assert picture.getpixel((picture.width // 2, 2)) == 255


def test_paper_is_light_whatever_the_screen_is(chromium, pages):
    with Opened(chromium, pages["private"], 768, "dark") as opened:
        opened.page.emulate_media(media="print", color_scheme="dark")
        assert (
            opened.page.evaluate("() => getComputedStyle(document.body).backgroundColor")
            == "rgb(255, 255, 255)"
        )


def test_what_scrolls_can_be_scrolled_from_the_keyboard(chromium, pages):
    with Opened(chromium, pages["private"], 200, "light") as opened:
        region = opened.page.locator("pre").first
        assert region.evaluate("box => box.scrollWidth > box.clientWidth")
        region.focus()
        assert region.evaluate("box => document.activeElement === box")
