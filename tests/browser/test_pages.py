"""The pages of runs and comparisons in a headless Chromium: complete in themselves, nothing cut, no fault that axe calls serious."""

import os
import shutil
from contextlib import contextmanager

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

import written_run
from experiments.compare import CompareSettings, compare
from experiments.pages.run_page import write_report
from experiments.settings.compose import compose

pytestmark = [pytest.mark.browser, pytest.mark.slow]

WIDTHS, SCHEMES, HEIGHT = (390, 1280), ("light", "dark"), 844
# The longest unit of privacy that a loader writes, and a name of a family and a metric without a break.
LONG_UNIT = (
    "one user cut into clients of at most 5 examples: the unit of privacy is the cut client, not the user, on the word of "
    "the operator of the node that holds it"
)
LONG_NAME = "my_own_package.factorizations.experimental:banded_and_tuned_for_this_federation"
# Elements that stick out of the window, except inside a container that scrolls; text that sticks out of its cell. Half a pixel
# is rounding; a few more are the padding of a code word at a line's end.
CUT = """() => {
  const found = [], slack = 0.5, width = document.documentElement.clientWidth;
  const name = (element) => `${element.tagName.toLowerCase()} ${(element.textContent || '').trim().slice(0, 60)}`;
  const scrolls = (element) => {
    for (let one = element; one && one !== document.body; one = one.parentElement)
      if (['auto', 'scroll'].includes(getComputedStyle(one).overflowX)) return true;
    return false;
  };
  if (document.documentElement.scrollWidth > width) found.push(`the page is ${document.documentElement.scrollWidth} wide`);
  for (const element of document.querySelectorAll('body *')) {
    if (element.closest('svg') && element.tagName !== 'svg') continue;
    const box = element.getBoundingClientRect();
    if (box.width && !scrolls(element) && (box.right > width + slack || box.left < -slack)) found.push(name(element));
    if (['TD', 'TH', 'DD', 'DT', 'P', 'LI', 'H1', 'H2', 'FIGCAPTION'].includes(element.tagName) && element.scrollWidth > element.clientWidth + 4)
      found.push(`text in ${name(element)}`);
  }
  return found;
}"""
FAULTY = (
    "<!DOCTYPE html><html lang=en><head><title>t</title></head><body><main><h1>t</h1><p style='width:500px'>wide</p>"
    "<script>console.log('hello')</script><img src='http://127.0.0.1:9/x.png'></main></body></html>"
)


@pytest.fixture(scope="module")
def chromium():
    """A headless Chromium: the one that CHROMIUM names, else the first on PATH.

    For a module, not the session: while it runs, no other test of this process could run an event loop.
    """
    program = shutil.which(os.environ.get("CHROMIUM") or "chromium")
    if program is None:
        pytest.skip("no Chromium, which is no Python package: install it, or name it with CHROMIUM")
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []  # it refuses root otherwise
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=program, args=[*flags, "--disable-dev-shm-usage", "--disable-gpu"]
        )
        yield browser
        browser.close()


@contextmanager
def opened(chromium, file, width, scheme):
    """Open a page; yield it and the list of its console messages, errors and requests besides its own."""
    context = chromium.new_context(viewport={"width": width, "height": HEIGHT}, color_scheme=scheme)
    page, said = context.new_page(), []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url))
    page.goto(file.as_uri(), wait_until="load")
    said.remove(file.as_uri())
    yield page, [text for text in said if not text.startswith("data:")]
    context.close()


def faults(page):
    """Return the rules of the serious and critical faults that axe finds."""
    found = Axe().run(page).response["violations"]
    return [fault["id"] for fault in found if fault["impact"] in ("serious", "critical")]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """{name: file} of the page of a run, of one of the longest words, and of a comparison of long names."""
    folder = tmp_path_factory.mktemp("pages")
    said = {"unit_of_privacy": LONG_UNIT, "mechanism": LONG_NAME}
    write_report(written_run.write(folder / "run"))
    write_report(
        written_run.write(folder / "long", summary=said, privacy=said, mechanism={"family": LONG_NAME})
    )
    for number, name in enumerate((LONG_NAME, LONG_NAME.replace("banded", "plain"), "optimal")):
        for seed in (1, 2):
            config = {
                "seed": seed,
                "metrics": ["f1"],
                "mechanism": {"name": name},
                "optimizer": {"momentum": number},
            }
            written_run.write(folder / f"sweep/{number}-{seed}", config=config, summary={"f1": 0.5})
    compare(compose("compare", [f"directory={folder / 'sweep'}", "output=json"], CompareSettings))
    files = {"run": "run/report.html", "long": "long/report.html", "comparison": "sweep/compare.html"}
    return {name: folder / file for name, file in files.items()}


@pytest.mark.parametrize("name", ["run", "long", "comparison"])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_page_asks_nothing_cuts_nothing_and_has_no_serious_fault(chromium, pages, name, width, scheme):
    with opened(chromium, pages[name], width, scheme) as (page, said):
        assert (said, page.evaluate(CUT), faults(page)) == ([], [], [])


def test_each_fault_is_seen_on_a_page_that_has_it(chromium, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(FAULTY)
    with opened(chromium, file, 390, "light") as (page, said):
        assert {"hello", "http://127.0.0.1:9/x.png"} <= set(said)
        assert page.evaluate(CUT)
        assert faults(page) == ["image-alt"]
