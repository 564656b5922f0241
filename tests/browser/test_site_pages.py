"""The documents' site in a headless browser: the page of results and those with the most on them."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from built_site import build
from seen import SCHEMES, WIDTHS, Opened

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PAGES = ("results/whole_run.html", "index.html", "mechanisms.html", "api/fedmf/plan.html")


class Quiet(SimpleHTTPRequestHandler):
    """A server of files that prints nothing."""

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The address of the site, served on the loopback interface: its search asks for a file, which file:// refuses."""
    folder = tmp_path_factory.mktemp("site")
    build(folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_page_of_the_site_is_silent_asks_only_its_own_host_and_cuts_nothing(
    site, chromium, name, width, scheme
):
    with Opened(chromium, site + name, width, scheme, own=site) as opened:
        opened.page.wait_for_load_state("networkidle")
        assert opened.messages == []
        assert opened.requests == []
        assert opened.cut("article") == []
        assert opened.faults() == []
